#include "troika/cluster/discovery/environment.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <tuple>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/launcher_variables.h"
#include "troika/cluster/discovery/port.h"

namespace troika::cluster {

namespace {

struct Launcher {
  bool (*is_there)(const Reader&);
  Environment (*read)(const Reader&);
};
constexpr std::array kInOrder{
    Launcher{has_torchrun, read_torchrun}, Launcher{has_slurm, read_slurm},
    Launcher{has_openmpi, read_openmpi},   Launcher{has_pmi, read_pmi},
    Launcher{has_lsf, read_lsf},
};

// Reads Slurm's variables, or those of an mpirun that was started inside the allocation. The ranks
// of that mpirun inherit Slurm's variables from the batch script or from the daemons that srun
// started, which are numbered differently.
Environment read_slurm_or_inner_mpi(const Reader& reader) {
  for (const auto& [is_there, read] : {kInOrder[2], kInOrder[3]}) {
    if (!is_there(reader)) continue;
    Environment inner = read(reader);
    if (reader.first_of({"SLURM_STEP_ID", "SLURM_STEPID"}).empty()) return inner;
    const Environment slurm = read_slurm(reader);
    if (inner.rank != slurm.rank || inner.world_size != slurm.world_size) return inner;
  }
  return read_slurm(reader);
}

Environment find_launcher(const Reader& reader) {
  for (const auto& [is_there, read] : kInOrder) {
    if (!is_there(reader)) continue;
    return read == read_slurm ? read_slurm_or_inner_mpi(reader) : read(reader);
  }
  return {};
}

// RANK or WORLD_SIZE alone is accepted if it agrees with the detected launcher, because batch
// scripts export WORLD_SIZE.
void check_half_torchrun(const Reader& reader, const Environment& found) {
  if (found.launcher == "torchrun") return;
  for (const auto& [name, other, value] : {std::tuple("WORLD_SIZE", "RANK", found.world_size),
                                           std::tuple("RANK", "WORLD_SIZE", found.rank)}) {
    const auto set = reader.number(name, 0);
    if (!set) continue;
    if (found.launcher == "none") fail_incomplete(name, other);
    if (*set != value) {
      throw Error("cluster", ErrorKind::usage,
                  {.what = "contradictory launch environment",
                   .got = fmt::format("{}={} without {}", name, *set, other),
                   .expected = fmt::format("{}, from {} variables", value, found.launcher),
                   .hint = fmt::format("unset {}", name)});
    }
  }
}

int default_port(const Environment& found) {
  if (found.launcher == "none") return 0;
  if (found.launcher == "slurm" && !found.run_id.empty()) {
    const auto parts = split(found.run_id, '.');
    if (const auto job = parse_int(parts[0])) return job_port(*job, *parse_int(parts[1]));
  }
  if (found.launcher == "torchrun" || found.run_id.empty()) return kDefaultPort;
  // Job names of Open MPI and LSF are not always numbers.
  uint64_t name = 0;
  for (const char c : found.run_id) name = mix(name, static_cast<unsigned char>(c));
  return job_port(static_cast<int64_t>(name >> 1), 0);
}

}  // namespace

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

Environment discover(const Variables& variables) {
  const Reader reader(variables);
  Environment found = find_launcher(reader);
  check_half_torchrun(reader, found);
  const bool asks_launcher_for_master =
      found.launcher == "openmpi" || found.launcher == "pmi" || found.launcher == "torchrun";
  if (asks_launcher_for_master && found.num_nodes != 1) found.master_address.clear();
  if (const auto address = reader.text("MASTER_ADDR"); address && found.world_size > 1) {
    found.master_address = *address;
  }
  found.master_port = default_port(found);
  if (const auto port = reader.number("MASTER_PORT", 1); port && found.world_size > 1) {
    if (*port > 65535) fail_range("MASTER_PORT", *port, "ports", 65536);
    // With this variable set, torchrun's agent itself listens on MASTER_PORT.
    const bool taken = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    found.master_port = taken ? job_port(*port, 0) : *port;
  }
  if (found.world_size == 1) found.master_port = 0;
  return found;
}

std::string describe(const Environment& environment) {
  const std::string node =
      environment.node_rank < 0
          ? "an unknown node"
          : fmt::format("node {} of {}", environment.node_rank, environment.num_nodes);
  std::string launcher = environment.launcher;
  for (const auto& [name, shown] : {std::pair("slurm", "Slurm"), std::pair("openmpi", "Open MPI"),
                                    std::pair("pmi", "PMI"), std::pair("lsf", "LSF")}) {
    if (launcher == name) launcher = shown;
  }
  return fmt::format(
      "rank {} of {} (local {} of {} on {}), {}", environment.rank, environment.world_size,
      environment.local_rank, environment.local_world_size, node,
      launcher == "none" ? "no launcher found" : fmt::format("found by {} variables", launcher));
}

void require_world_size(const Environment& environment, int size, const std::string& who) {
  if (size == environment.world_size) return;
  throw Error(
      "cluster", ErrorKind::usage,
      {.what = fmt::format("the launcher and {} disagree on the number of ranks", who),
       .got = fmt::format("{} from {}", size, who),
       .expected = fmt::format("{} ({})", environment.world_size, describe(environment)),
       .hint = fmt::format("start with the launcher that belongs to this {}, e.g. its mpirun "
                           "or srun --mpi=pmix",
                           who)});
}

}  // namespace troika::cluster
