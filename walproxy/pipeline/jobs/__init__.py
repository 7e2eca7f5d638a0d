"""The jobs of `walproxy pipeline`: each is a function that a program can call as well."""
