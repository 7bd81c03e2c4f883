"""Questions in SQL at a console: passed on to a process above the actors, whose Spark answers them."""
