"""A codec that knows fields: messages as templates whose fields have tables, learned by the sampling broker."""
