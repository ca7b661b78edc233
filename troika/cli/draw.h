// `troika plan --draw`: draws pipeline schedules.
#pragma once

#include <string>
#include <vector>

#include "troika/cli/pipeline_arguments.h"
#include "troika/layout/plan.h"

namespace CLI {
class App;
}

namespace troika::cli {

struct DrawArguments {
  // NAME P M, or a file; empty: the plan of the other arguments.
  std::vector<std::string> what;
  PipelineArguments pipeline;
  std::string svg;
  int width = 160;
};

// Adds --draw and the options that depend on it.
void add_draw_options(CLI::App& command, DrawArguments& arguments);

// Print the drawing, and write it as SVG if requested. Throw Error(usage) for arguments that do not
// describe a schedule. With `plan`, also throws for options that contradict the plan.
int draw_schedule(const DrawArguments& arguments);
int draw_schedule(const DrawArguments& arguments, const layout::Plan& plan);

}  // namespace troika::cli
