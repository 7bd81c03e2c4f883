"""What the tests of programs that use lexicast need: a broker in memory."""
