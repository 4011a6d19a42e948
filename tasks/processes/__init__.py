"""Run work on texts in processes beside this one."""
