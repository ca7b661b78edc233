// The values of a plan that are for schedules without flushes.
#pragma once

#include "troika/layout/plan.h"

namespace troika::layout {

// Throws Error(usage) if a plan without flushes combines values that it cannot run, or if a plan
// with flushes has a value other than the default of one that is for plans without.
void verify_without_flushes(const Plan& plan);

}  // namespace troika::layout
