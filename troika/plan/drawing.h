// Pictures of simulated schedules, as the figures of the papers on pipelines.
#pragma once

#include <string>

#include "troika/plan/simulator.h"

namespace troika::plan {

// A line for each rank, with time to the right, in at most `width` columns: passes by their kind
// and micro-batch (F3), or by their kind alone where that takes too many columns. Kinds of odd
// chunks are small letters, passes that begin together are joined by +, and waits are blank. Throws
// Error(usage) for a width below 20.
std::string draw_text(const Simulation& simulation, int width);

// The same as SVG, a document of its own: forward passes are blue, whole backward passes and input
// parts are green, weight parts are orange, with the number of the micro-batch; odd chunks are
// darker, and of passes that begin together each has half of the height. `title` is plain text.
std::string draw_svg(const Simulation& simulation, const std::string& title);

}  // namespace troika::plan
