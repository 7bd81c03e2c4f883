"""The SREM driver's parts on a broker's engine: delivery, those who have no condition, the past, truth."""
