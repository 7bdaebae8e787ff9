// The number of `VERSION` in native_library.py.
extern "C" int softnpu_engine_version() { return 2; }
