"""Effect. Who acts: driver, supervisor, host monitors, and the workers' actors."""
