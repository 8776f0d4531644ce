"""Import names of the appliance interface."""
