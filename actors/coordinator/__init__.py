"""The topic coordinator: gives publications their places, stores and sends them, and keeps sessions."""
