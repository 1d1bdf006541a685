#pragma once
/* The system and the CPU that the library runs on. */
int stays(void);
int runs(const char *cpu);
