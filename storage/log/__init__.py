"""The log of blocks: their form on disk, what a commit has to know of them, how they are cut."""
