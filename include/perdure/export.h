#pragma once

// Marks what libperdure exports. Everything else in the library is hidden, so that a training
// binary may bring any version of anything we use inside.
#if defined(__GNUC__)
#define PERDURE_API [[gnu::visibility("default")]]
#else
#define PERDURE_API
#endif
