"""The oldest interface: initialize, module, dataloader, Session."""
