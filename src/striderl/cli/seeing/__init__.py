"""Commands that show what runs and envs did: tables, curves, pages, differences, complaints. None of them trains."""
