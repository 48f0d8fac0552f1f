"""Other libraries on these ops; each module imports its library only when it is switched on."""
