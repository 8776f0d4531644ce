"""Modules of the appliance interface under the vendor's names."""
