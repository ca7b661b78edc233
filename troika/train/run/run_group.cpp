#include "troika/train/run/run_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "troika/base/error.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

namespace {

Milliseconds milliseconds(double seconds) {
  return Milliseconds(static_cast<int64_t>(seconds * 1e3));
}

void require_devices(const TrainOptions& options, const comm::Group& group) {
  const auto& nodes = group.nodes();
  const int64_t here =
      std::count(nodes.begin(), nodes.end(), nodes[static_cast<size_t>(group.rank())]);
  const int64_t wanted = options.trainer.devices;
  if (wanted == -1 || wanted == here || trains_in_threads(options)) return;
  throw Error(
      "train", ErrorKind::usage,
      {.what = "trainer.devices and the launcher disagree",
       .got = fmt::format("devices = {}", wanted),
       .expected = fmt::format("{}, the processes of the group on this machine", here),
       .hint = group.size() == 1 ? fmt::format("start it by `troika launch -n {} PROGRAM`", wanted)
                                 : "leave trainer.devices at -1 under a launcher"});
}

void require_nodes(const TrainOptions& options, const comm::Group& group) {
  const auto& ranks = group.nodes();
  const auto nodes = static_cast<int64_t>(std::set<int>(ranks.begin(), ranks.end()).size());
  const int64_t wanted = options.trainer.num_nodes;
  if (wanted == -1 || wanted == nodes) return;
  throw Error("train", ErrorKind::usage,
              {.what = "trainer.num_nodes and the launcher disagree",
               .got = fmt::format("num_nodes = {}", wanted),
               .expected = fmt::format("{}, the machines that the {} processes are on", nodes,
                                       group.size()),
               .hint = fmt::format("start it on {}, with srun --nodes={} or troika launch --nnodes "
                                   "{}, or leave it at -1",
                                   wanted, wanted, wanted)});
}

double seconds(Milliseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

// A non-default value counts as asked for.
template <typename T>
void require_made_with(const char* key, const T& wanted, const T& by_default, const T& made_with) {
  if (wanted == by_default || wanted == made_with) return;
  throw Error("train", ErrorKind::usage,
              {.what = fmt::format("{} is not what the trainer's group was made with", key),
               .got = fmt::format("{}", wanted),
               .expected = fmt::format("{}", made_with),
               .hint = "make it with comm::world(train::world_options(options))"});
}

// The final name of the run's folder is not known yet: the ranks decide on it after they have
// joined. A launcher's folder is left to world().
std::filesystem::path flight_record_folder(const TrainOptions& options) {
  if (cluster::process_variable("TROIKA_FLIGHT_RECORD")) return {};
  return std::filesystem::path(options.run.folder) / "flight-records" / options.run.name;
}

}  // namespace

comm::WorldOptions world_options(const TrainOptions& options) {
  const auto& comm = options.comm;
  return {.backend = comm.backend,
          .join_timeout = milliseconds(comm.join_timeout_seconds),
          .group = {.timeout = milliseconds(comm.timeout_seconds),
                    .stall_warning = milliseconds(comm.stall_warning_seconds),
                    .algorithm = comm::algorithm_from(comm.algorithm),
                    .flight_record = flight_record_folder(options),
                    .protection = comm.protection,
                    .streams = static_cast<int>(comm.streams)}};
}

void require_group_of(const TrainOptions& options, const comm::Group& group) {
  require_devices(options, group);
  require_nodes(options, group);
  if (group.size() == 1) return;  // a single rank does not communicate
  const auto& comm = options.comm;
  const comm::CommOptions defaults;
  const auto& made = group.options();
  require_made_with("comm.timeout_seconds", comm.timeout_seconds, defaults.timeout_seconds,
                    seconds(made.timeout));
  require_made_with("comm.stall_warning_seconds", comm.stall_warning_seconds,
                    defaults.stall_warning_seconds, seconds(made.stall_warning));
  require_made_with("comm.algorithm", comm.algorithm, defaults.algorithm,
                    std::string(comm::name(made.algorithm)));
  require_made_with("comm.protection", comm.protection, defaults.protection, made.protection);
  require_made_with("comm.streams", comm.streams, defaults.streams, int64_t{made.streams});
  const std::string backend(group.backend());
  require_made_with("comm.backend", comm.backend, defaults.backend,
                    backend.substr(0, backend.find("+nccl")));
}

}  // namespace troika::train
