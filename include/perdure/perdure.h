// Everything a training program needs, except perdure/torch.h, which brings libtorch with it.
#pragma once

#include "perdure/checkpoint.h"  // IWYU pragma: export
#include "perdure/clock.h"       // IWYU pragma: export
#include "perdure/comm.h"        // IWYU pragma: export
#include "perdure/data.h"        // IWYU pragma: export
#include "perdure/health.h"      // IWYU pragma: export
#include "perdure/ids.h"         // IWYU pragma: export
#include "perdure/session.h"     // IWYU pragma: export
#include "perdure/status.h"      // IWYU pragma: export
#include "perdure/tensor.h"      // IWYU pragma: export
