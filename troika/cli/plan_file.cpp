#include "troika/cli/plan_file.h"

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/layout/plan.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::cli {

void take_plan(train::TrainOptions& options, const std::string& file,
               const std::vector<std::string>& overrides) {
  for (const auto& argument : overrides) {
    const auto equals = argument.find('=');
    const auto key = argument.substr(2, equals - 2);
    if (!train::is_planned(key)) continue;
    throw Error("plan", ErrorKind::usage,
                {.what = key + " beside --plan",
                 .got = argument.substr(equals + 1),
                 .expected = "no such argument, because the plan sets it",
                 .hint = "edit " + file + ", or leave --plan out"});
  }
  options.trainer.plan = read_file(file);
  layout::Plan::parse(options.trainer.plan, file);  // errors name the file and the line
  options = train::with_plan(options);
}

}  // namespace troika::cli
