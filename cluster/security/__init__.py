"""Who may log in, and who may do what: password files, tokens and rules, and the files a cluster is given. Pure."""
