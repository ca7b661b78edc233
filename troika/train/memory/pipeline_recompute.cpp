// Recomputation in the stages of a pipeline within a budget.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/layout/recompute.h"
#include "troika/train/memory/pipeline_memory.h"
#include "troika/train/memory/prediction.h"

namespace troika::train {

namespace {

// In the order in which they are tried: by the number of blocks that are computed twice.
std::vector<std::string> policies_for(const layout::StageEnds& ends) {
  size_t most = 0, begin = 0;
  for (const size_t end : ends) {
    most = std::max(most, end - begin);
    begin = end;
  }
  std::vector<std::string> result{"sqrt", "full"};
  for (size_t step = 2; step < most; step *= 2) result.push_back(fmt::format("every_{}", step));
  result.emplace_back("none");
  std::ranges::reverse(result);
  return result;
}

}  // namespace

std::string MemoryPredictor::recompute_of_stages(const MemoryChoice& choice) {
  const auto budget = layout::recompute_budget(choice.recompute);
  if (!budget) return choice.recompute;
  const PipelineShapes shapes(*model_, plan(choice));
  const auto policies = policies_for(shapes.ends());
  std::vector<size_t> chosen(static_cast<size_t>(shapes.pipeline_ranks()), 0);
  const auto of_stages = [&] {
    std::vector<std::string> result(shapes.stages().size());
    for (int rank = 0; rank < shapes.pipeline_ranks(); ++rank) {
      for (const int stage : shapes.stages_of(rank)) {
        result[static_cast<size_t>(stage)] = policies[chosen[static_cast<size_t>(rank)]];
      }
    }
    const bool are_equal =
        std::ranges::adjacent_find(result, std::not_equal_to<>()) == result.end();
    return are_equal ? result.front() : fmt::format("{}", fmt::join(result, "|"));
  };
  // Recomputation in any stage keeps all stages from splitting their backward passes, so every
  // combination is predicted as a whole.
  for (;;) {
    auto planned = choice;
    planned.recompute = of_stages();
    const auto ranks = predict_pipeline(planned);
    bool fits = true;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const double bytes = ranks[rank].activation_peak;
      if (bytes <= static_cast<double>(*budget)) continue;
      fits = false;
      if (++chosen[rank] < policies.size()) continue;
      throw Error("train", ErrorKind::usage,
                  {.what = fmt::format("no recomputation keeps the activations of pipeline rank {} "
                                       "within trainer.recompute {}",
                                       rank, choice.recompute),
                   .got = fmt::format("{} with {}, predicted", human_bytes(bytes), policies.back()),
                   .expected = "at most " + human_bytes(static_cast<double>(*budget)),
                   .hint = "a larger budget, smaller or fewer micro-batches, or another schedule"});
    }
    if (fits) return planned.recompute;
  }
}

}  // namespace troika::train
