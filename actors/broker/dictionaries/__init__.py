"""The dictionaries that a broker holds, and blocks that wait for one."""
