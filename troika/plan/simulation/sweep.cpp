#include "troika/plan/simulation/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "troika/base/text.h"
#include "troika/layout/schedules/table.h"
#include "troika/plan/errors/refuse.h"

namespace troika::plan {

using layout::Axis;
using layout::Cluster;
using layout::Plan;

namespace {

constexpr int kMostMicroBatches = 1'000'000;
constexpr size_t kMostValues = 10'000;
constexpr std::string_view kDefaultRange = "1..1024";
constexpr double kOneSample = 1 - 1e-9;  // up to rounding

[[noreturn]] void refuse_sweep(std::string_view text) {
  refuse("--sweep", std::string(text),
         "devices (from 1 to 16384) or micro_batches (from 1 to 1000000), with FROM..TO, "
         "FROM..TO/STEP or a list of at most 10000 numbers, as in devices=1..1024");
}

std::optional<int> value_of(std::string_view text, int most) {
  const auto value = parse_int(trim(text));
  if (!value || *value < 1 || *value > most) return std::nullopt;
  return static_cast<int>(*value);
}

std::vector<int> parse_range(std::string_view whole, std::string_view text, int most) {
  const size_t dots = text.find("..");
  const size_t slash = text.find('/');
  const auto from = value_of(text.substr(0, dots), most);
  const auto to =
      value_of(text.substr(dots + 2, slash == text.npos ? slash : slash - dots - 2), most);
  const auto step = slash == text.npos ? 0 : value_of(text.substr(slash + 1), most);
  if (!from || !to || !step || *from > *to) refuse_sweep(whole);
  std::vector<int> values;
  for (int64_t value = *from; value<*to; value += *step> 0 ? *step : value) {
    values.push_back(static_cast<int>(value));
    if (values.size() > kMostValues) refuse_sweep(whole);
  }
  // A range by doubling includes its end; a range by steps does if a step meets the end.
  if (*step == 0 || (*to - *from) % *step == 0) values.push_back(*to);
  return values;
}

// Whether the plan's schedule can have the plan's ranks, micro-batches and chunks.
bool is_in_domain(const Plan& plan) {
  if (plan.schedule == layout::kOneStageSchedule || plan.schedule == layout::kCustomSchedule) {
    return true;
  }
  const auto& row = layout::row_of(plan);
  const layout::PipelineShape shape{
      .ranks = plan.mesh.size(Axis::pipeline),
      .micro_batches = static_cast<int>(plan.micro_batches),
      .chunks = plan.chunks > 0 ? static_cast<int>(plan.chunks) : row.chunks};
  return !row.takes || row.takes(shape);
}

double mean_seconds(const RunSimulation& simulation) {
  return simulation.seconds / static_cast<double>(simulation.step_seconds.size());
}

RunSimulation simulated(const SweptRun& swept, const Plan& plan, const Cluster& cluster,
                        double samples) {
  auto run = swept.run;
  run.plan = plan;
  run.cluster = cluster;
  run.records_trace = false;
  std::erase_if(run.disturbances.slow_ranks,
                [&](const auto& slow) { return slow.first >= plan.mesh.ranks(); });
  auto work = swept.work;
  work.samples *= samples;
  run.stages = stage_work(swept.profile, plan, work);
  return simulate_run(run);
}

// Throws Error(usage) for a mesh that on_devices() cannot change.
void require_mesh_of_sweep(const SimulatedRun& run) {
  const auto& mesh = run.plan.mesh;
  const auto what = "mesh of a sweep over devices" + run.places.of("mesh.axes");
  if (mesh.has_uneven_stages()) refuse(what, mesh.text(), "stages with equal replicas");
  for (const auto axis : mesh.axes()) {
    const bool is_known = axis == Axis::data || axis == Axis::pipeline || axis == Axis::tensor ||
                          axis == Axis::context;
    if (!is_known && mesh.size(axis) > 1) {
      refuse(what, mesh.text(), "the axes data, pipeline, tensor and context alone");
    }
  }
}

// Whether the parts of the plan, such as its groups of ZeRO, go with its numbers of ranks.
bool is_consistent(const Plan& plan) {
  try {
    plan.verify();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns the plan changed to `devices` devices, at least as many as its tensor and context axes
// have. If these do not divide among the stages, it uses fewer.
Plan on_devices(const Plan& plan, int devices) {
  Plan scaled = plan;
  const int inner = plan.mesh.size(Axis::tensor) * plan.mesh.size(Axis::context);
  const int stages = std::min(plan.mesh.size(Axis::pipeline), devices / inner);
  if (stages < plan.mesh.size(Axis::pipeline)) {
    if (plan.schedule == layout::kCustomSchedule) {
      refuse("devices of a sweep", std::to_string(devices),
             fmt::format("at least {}, for which schedule.actions is made",
                         plan.mesh.size(Axis::pipeline)));
    }
    scaled.stages.cut.clear();  // made for more stages
  }
  const int replicas = devices / (stages * inner);
  if (inner > 1) {
    std::vector<std::string> axes;
    bool has_data = false;
    for (const auto axis : plan.mesh.axes()) {
      has_data = has_data || axis == Axis::data;
      const int size = axis == Axis::pipeline ? stages
                       : axis == Axis::data   ? replicas
                                              : plan.mesh.size(axis);
      axes.push_back(fmt::format("{}={}", layout::name(axis), size));
    }
    if (!has_data) axes.insert(axes.begin(), fmt::format("data={}", replicas));
    scaled.mesh = layout::Mesh::parse(fmt::format("{}", fmt::join(axes, " ")));
    return scaled;
  }
  const bool data_is_outer = !plan.mesh.axes().empty() && plan.mesh.axes().front() == Axis::data;
  scaled.mesh = layout::Mesh::parse(
      fmt::format(fmt::runtime(data_is_outer ? "data={1} pipeline={0}" : "pipeline={0} data={1}"),
                  stages, replicas));
  return scaled;
}

// A sweep takes the first devices of the cluster, so it would move such servers to other hosts.
void refuse_servers_on_hosts(const SimulatedRun& run) {
  const int ranks = run.plan.mesh.ranks();
  const bool has_servers =
      run.plan.has_servers() || run.plan.exchange.method == layout::ExchangeMethod::summation;
  if (!has_servers || run.cluster.ranks() <= ranks) return;
  const auto devices = run.server_devices();
  const auto count = std::ranges::count_if(devices, [&](int device) { return device >= ranks; });
  if (count == 0) return;
  refuse("a sweep over devices",
         fmt::format("{} server{} on hosts without ranks", count, count > 1 ? "s" : ""),
         "servers beside ranks", "leave the hosts without ranks out of the cluster");
}

}  // namespace

SweepRange SweepRange::parse(std::string_view text) {
  const size_t equals = text.find('=');
  const auto name = text.substr(0, equals);
  SweepRange range;
  if (name != "devices" && name != "micro_batches") refuse_sweep(text);
  range.what = name == "devices" ? What::devices : What::micro_batches;
  const int most = range.what == What::devices ? layout::kMostDevices : kMostMicroBatches;
  const auto values = equals == text.npos ? kDefaultRange : text.substr(equals + 1);
  if (values.find("..") != values.npos) {
    range.values = parse_range(text, values, most);
    return range;
  }
  for (const auto& word : split(values, ',')) {
    const auto value = value_of(word, most);
    if (!value) refuse_sweep(text);
    range.values.push_back(*value);
  }
  std::ranges::sort(range.values);
  const auto repeated = std::ranges::unique(range.values);
  range.values.erase(repeated.begin(), repeated.end());
  return range;
}

Cluster resized(const Cluster& cluster, int devices) {
  Cluster result = cluster;
  result.devices.clear();
  int left = devices;
  for (const auto& row : cluster.devices) {
    if (left == 0) return result;
    result.devices.push_back(row);
    result.devices.back().count = std::min(row.count, left);
    left -= result.devices.back().count;
  }
  std::vector<layout::Devices> last;  // the rows of the last host
  for (const auto& row : cluster.devices) {
    if (row.host == cluster.devices.back().host) last.push_back(row);
  }
  while (left > 0) {
    result.hosts.push_back(fmt::format("more-{}", result.hosts.size()));
    for (auto row : last) {
      if (left == 0) break;
      row.host = static_cast<int>(result.hosts.size()) - 1;
      row.count = std::min(row.count, left);
      left -= row.count;
      result.devices.push_back(row);
    }
  }
  return result;
}

std::optional<int> rank_beyond_memory(const RunSimulation& simulation, const Cluster& cluster) {
  std::optional<int> found;
  double most = 0;
  for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const auto memory = cluster.devices_of(static_cast<int>(rank)).memory_bytes;
    const double beyond = simulation.ranks[rank].peak_bytes - static_cast<double>(memory);
    if (memory == 0 || beyond <= most) continue;
    most = beyond;
    found = static_cast<int>(rank);
  }
  return found;
}

std::vector<DevicesPoint> sweep_devices(const SweptRun& swept, const std::vector<int>& devices) {
  require_mesh_of_sweep(swept.run);
  swept.run.plan.verify();
  refuse_servers_on_hosts(swept.run);
  const auto rate_on = [&](int count, DevicesPoint& point) {
    const auto& mesh = swept.run.plan.mesh;
    if (count < mesh.size(Axis::tensor) * mesh.size(Axis::context)) return false;
    const auto plan = on_devices(swept.run.plan, count);
    if (!is_in_domain(plan) || !is_consistent(plan)) return false;
    const auto cluster = resized(swept.run.cluster, count);
    const auto simulation = simulated(swept, plan, cluster, 1);
    point.devices = count;
    point.used = plan.mesh.ranks();
    point.mesh = plan.mesh.text();
    point.step_seconds = mean_seconds(simulation);
    auto run = swept.run;
    run.plan = plan;
    const double samples =
        run.micro_batches_of_step() * swept.work.samples * swept.profile.micro_batch;
    point.samples_per_second = samples / point.step_seconds;
    double computes = 0;
    for (const auto& rank : simulation.ranks) computes += rank.compute_seconds;
    point.idle_share = 1 - computes / (point.step_seconds * count);
    point.fits = !rank_beyond_memory(simulation, cluster);
    return true;
  };
  std::vector<DevicesPoint> points;
  DevicesPoint one;
  const bool runs_on_one = swept.run.plan.schedule != layout::kCustomSchedule ||
                           swept.run.plan.mesh.size(Axis::pipeline) == 1;
  const bool has_one = runs_on_one && rate_on(1, one);
  for (const int count : devices) {
    DevicesPoint point;
    if (!rate_on(count, point)) continue;
    if (has_one) point.speed_up = point.samples_per_second / one.samples_per_second;
    points.push_back(point);
  }
  if (points.empty()) {
    refuse("devices of a sweep", fmt::format("{}", fmt::join(devices, ",")),
           fmt::format("a number on which mesh {} and schedule {} run", swept.run.plan.mesh.text(),
                       swept.run.plan.schedule));
  }
  return points;
}

std::vector<MicroBatchesPoint> sweep_micro_batches(const SweptRun& swept,
                                                   const std::vector<int>& micro_batches) {
  std::vector<MicroBatchesPoint> points;
  for (const int count : micro_batches) {
    auto plan = swept.run.plan;
    const double samples = static_cast<double>(plan.micro_batches) / count;
    plan.micro_batches = count;
    const double each = samples * swept.work.samples * swept.profile.micro_batch;
    if (each < kOneSample || !is_in_domain(plan)) continue;
    const auto simulation = simulated(swept, plan, swept.run.cluster, samples);
    auto& point = points.emplace_back();
    point.micro_batches = count;
    point.samples = each;
    point.step_seconds = mean_seconds(simulation);
    point.bubble_rate = simulation.bubble_rate;
    for (const auto& rank : simulation.ranks) {
      point.peak_bytes = std::max(point.peak_bytes, rank.peak_bytes);
    }
    point.fits = !rank_beyond_memory(simulation, swept.run.cluster);
  }
  return points;
}

const MicroBatchesPoint* best_of(const std::vector<MicroBatchesPoint>& points) {
  const MicroBatchesPoint* best = nullptr;
  for (const auto& point : points) {
    if (point.fits && (!best || point.step_seconds < best->step_seconds)) best = &point;
  }
  return best;
}

}  // namespace troika::plan
