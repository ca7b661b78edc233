// Every schedule on 1 to 4 pipeline ranks, with 1 and 2 replicas, several numbers of micro-batches
// and every model of pipeline_case(): inside the schedule's domain, a step equals that of one
// process; outside, all ranks refuse the pipeline.
//
//   schedule_product            a selection in which every pair of values occurs
//   schedule_product --all      the whole product
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <set>
#include <string_view>
#include <tuple>

#include "tests/parallel/pipeline_course.h"
#include "troika/base/error.h"
#include "troika/comm/local/local.h"
#include "troika/layout/schedules/table.h"

namespace troika::parallel {
namespace {

constexpr std::array kModels{"mlp", "skips", "gpt", "resnet20", "s2vt", "unet"};
constexpr std::array kMicroBatches{"1", "p", "2p", "odd"};

// Indices of a schedule, of pipeline ranks - 1, of replicas - 1, of micro-batches and of a model.
using Case = std::array<size_t, 5>;

std::array<size_t, 5> sizes() {
  return {layout::schedule_table().size(), 4, 2, kMicroBatches.size(), kModels.size()};
}

std::vector<Case> product() {
  const auto n = sizes();
  std::vector<Case> result;
  Case one{};
  for (one[0] = 0; one[0] < n[0]; ++one[0])
    for (one[1] = 0; one[1] < n[1]; ++one[1])
      for (one[2] = 0; one[2] < n[2]; ++one[2])
        for (one[3] = 0; one[3] < n[3]; ++one[3])
          for (one[4] = 0; one[4] < n[4]; ++one[4]) result.push_back(one);
  return result;
}

// Takes, again and again, the case with the most pairs of values that no case before has.
std::vector<Case> pairs() {
  using Pair = std::tuple<size_t, size_t, size_t, size_t>;
  const auto all = product();
  const auto pairs_of = [](const Case& one) {
    std::vector<Pair> result;
    for (size_t a = 0; a < one.size(); ++a) {
      for (size_t b = a + 1; b < one.size(); ++b) result.emplace_back(a, one[a], b, one[b]);
    }
    return result;
  };
  std::set<Pair> missing;
  for (const auto& one : all) {
    for (const auto& pair : pairs_of(one)) missing.insert(pair);
  }
  std::vector<Case> result;
  while (!missing.empty()) {
    const auto gain = [&](const Case& one) {
      const auto own = pairs_of(one);
      return std::ranges::count_if(own, [&](const auto& pair) { return missing.contains(pair); });
    };
    result.push_back(*std::ranges::max_element(all, {}, gain));
    for (const auto& pair : pairs_of(result.back())) missing.erase(pair);
  }
  return result;
}

// Returns whether the case lies in the schedule's domain.
bool run(const Case& one) {
  const auto& row = layout::schedule_table()[one[0]];
  const int ranks = static_cast<int>(one[1]) + 1, replicas = static_cast<int>(one[2]) + 1;
  const std::array micro_batches{1, ranks, 2 * ranks, 2 * ranks + 1};
  const std::string model = kModels[one[4]];
  const PipelineOptions options{.schedule = std::string(row.name),
                                .micro_batches = micro_batches[one[3]]};
  const int64_t samples = options.micro_batches + 1;  // micro-batches of different sizes
  const auto of = pipeline_case(model, samples);
  bool is_refused = false;
  try {
    layout::require_domain(row, {.ranks = ranks,
                                 .micro_batches = options.micro_batches,
                                 .blocks = static_cast<int>(of.model->blocks().size())});
  } catch (const Error&) {
    is_refused = true;
  }
  const auto mesh = fmt::format("pipeline={} data={}", ranks, replicas);
  comm::local::run(ranks * replicas, [&](comm::Group world) {
    if (!is_refused) return expect_oracle(world, mesh, model, samples, options);
    const comm::MeshGroups groups(world, layout::Mesh::parse(mesh));
    EXPECT_THROW(Pipeline(pipeline_case_alone(model, samples).model, groups, options), Error)
        << options.schedule << ", " << mesh << ", " << options.micro_batches << " micro-batches";
  });
  return !is_refused;
}

}  // namespace
}  // namespace troika::parallel

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool all = argc > 1 && std::string_view(argv[1]) == "--all";
  if (argc > 2 || (argc == 2 && !all)) {
    std::cerr << "error: got " << argv[1] << ", expected --all or nothing" << std::endl;
    return 2;
  }
  const auto cases = all ? troika::parallel::product() : troika::parallel::pairs();
  const auto in_domain = std::ranges::count_if(cases, troika::parallel::run);
  std::cout << fmt::format("{} steps equal those of one process, {} refused\n", in_domain,
                           static_cast<int64_t>(cases.size()) - in_domain);
  return testing::Test::HasFailure() ? 1 : 0;
}
