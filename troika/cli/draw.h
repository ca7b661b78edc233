// `troika plan --draw`: pictures of schedules of pipelines.
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
  // NAME P M, or a file; empty: the plan that the other arguments mean.
  std::vector<std::string> what;
  PipelineArguments pipeline;
  std::string svg;
  int width = 160;
};

// --draw, and the options that need it.
void add_draw_options(CLI::App& command, DrawArguments& arguments);

// Prints the picture, and writes it as SVG where that is asked for. Each throws Error(usage) for
// arguments that are no schedule; the second one for options that a plan leaves without a meaning.
int draw_schedule(const DrawArguments& arguments);
int draw_schedule(const DrawArguments& arguments, const layout::Plan& plan);

}  // namespace troika::cli
