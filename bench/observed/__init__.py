"""The driver of who looks: a broker with the page open and Prometheus scraping, beside nobody looking."""
