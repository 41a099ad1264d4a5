"""Programs that use lowdnn as a framework or a C program would."""
