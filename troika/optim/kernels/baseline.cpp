#define TROIKA_KERNELS kBaseline
#include "troika/optim/kernels/kernels_impl.h"
