// Empty. The libraries that own the tests' precompiled headers need a source.
