#include "troika/cli/plan_file.h"

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/cli/configuration.h"
#include "troika/layout/plan.h"
#include "troika/train/resolve_plan.h"

namespace troika::cli {

void take_plan(train::TrainOptions& options, const std::string& file,
               const std::vector<std::string>& overrides) {
  train::TrainOptions typed;
  auto table = train::make_table(typed);
  read_configuration(table, "", overrides);
  for (const auto& setting : table.changed()) {
    if (!train::is_planned(setting.key)) continue;
    throw Error("plan", ErrorKind::usage,
                {.what = setting.key + " beside --plan",
                 .got = setting.value,
                 .expected = "no such argument, as the plan decides it",
                 .hint = "edit " + file + ", or leave --plan out"});
  }
  options.trainer.plan = read_file(file);
  layout::Plan::parse(options.trainer.plan, file);  // its errors name the file and the line
  options = train::with_plan(options);
}

}  // namespace troika::cli
