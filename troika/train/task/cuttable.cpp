#include "troika/train/task/cuttable.h"

#include <fmt/format.h>

#include <typeinfo>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/layout/plan.h"
#include "troika/train/task/task.h"

namespace troika::train {

void require_cuttable(const Task& task, const layout::Plan& plan) {
  const int stages = plan.mesh.size(layout::Axis::pipeline);
  if (stages == 1 && plan.schedule == layout::kOneStageSchedule) return;
  const auto name = c10::demangle(typeid(task).name());
  const auto asked =
      stages > 1 ? fmt::format("{} pipeline stages (mesh.axes {})", stages, plan.mesh.text())
                 : fmt::format("a model that the schedule {} runs as a stage", plan.schedule);
  if (const auto own = task.own_steps(); !own.empty()) {
    const auto& step = own.front();
    const bool predicts = step == "predict_step";
    throw Error(
        "train", ErrorKind::usage,
        {.what = fmt::format("{}::{} needs the whole model in one stage", name, step),
         .got = asked,
         .expected = predicts ? "one stage, or a task that predicts its model's only output"
                              : "one stage, or a task whose loss is loss(outputs, batch)",
         .hint = predicts
                     ? "predict with another task, which is not cut, or set pipeline=1"
                     : fmt::format("override Task::loss in place of {}, or set pipeline=1", step)});
  }
  if (task.has_blocks()) return;
  throw Error("train", ErrorKind::usage,
              {.what = fmt::format("{} has no blocks to cut into stages", name),
               .got = asked,
               .expected = "one stage, or a task made of an nn::Model",
               .hint = "nn::from_sequential() and nn::Model::add_block() make one"});
}

}  // namespace troika::train
