"""`lexicast up`: an embedded cluster started, watched and stopped."""
