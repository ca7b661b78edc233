// Pictures of simulated schedules, in the style of papers on pipeline parallelism.
#pragma once

#include <string>

#include "troika/plan/simulator.h"

namespace troika::plan {

// Draws one line per rank, with time to the right, in at most `width` columns: passes by kind and
// micro-batch (F3), or only by kind if that takes too many columns. Odd chunks have lower-case
// letters, passes that start together are joined by +, and waits are blank. Throws Error(usage) for
// a width below 20.
std::string draw_text(const Simulation& simulation, int width);

// Draws the same as a complete SVG document: forward passes are blue, whole backward passes and
// input parts are green, weight parts are orange, with the number of the micro-batch. Odd chunks
// are darker; two passes that start together each get half of the height. `title` is plain text.
std::string draw_svg(const Simulation& simulation, const std::string& title);

}  // namespace troika::plan
