"""The operations of aten that lowdnn takes over, a file for each family: arguments, conditions, graphs."""
