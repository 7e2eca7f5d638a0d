"""What `walproxy pipeline` does: each job is a function that a program can call as well."""
