// Linked into sanitizer builds only: OpenMPI's plugins stay mapped, so that a report at the end of
// the process can name them and the suppressions of this folder can match.
extern "C" int dlclose(void* /*library*/) { return 0; }
