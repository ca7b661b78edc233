#include "troika/cluster/discovery/launcher_variables.h"

#include <fmt/format.h>

#include <limits>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/text.h"

namespace troika::cluster {

namespace {

// A launcher's names for rank, size, local rank and local size.
struct Names {
  std::string launcher, rank, size, local_rank, local_size;
};

// Derives the node for block and cyclic placement; -1 of -1 if neither fits.
void place_on_nodes(Environment& environment) {
  const int local = environment.local_world_size;
  const int nodes = environment.world_size / local;
  environment.num_nodes = nodes;
  if (environment.world_size % local != 0) {
    environment.node_rank = environment.num_nodes = -1;
  } else if (environment.rank % local == environment.local_rank) {
    environment.node_rank = environment.rank / local;
  } else if (environment.rank / nodes == environment.local_rank) {
    environment.node_rank = environment.rank % nodes;
  } else {
    environment.node_rank = environment.num_nodes = -1;
  }
}

Environment read_four(const Reader& reader, const Names& names) {
  Environment found;
  found.launcher = names.launcher;
  if (!reader.has(names.rank)) fail_incomplete(names.size, names.rank);
  if (!reader.has(names.size)) fail_incomplete(names.rank, names.size);
  found.world_size = reader.require(names.size, 1);
  found.rank = reader.require(names.rank, 0);
  if (found.rank >= found.world_size) {
    fail_range(names.rank, found.rank, names.size, found.world_size);
  }
  if (found.world_size == 1 && !reader.has(names.local_rank)) return found;
  if (!reader.has(names.local_rank)) fail_incomplete(names.rank, names.local_rank);
  if (!reader.has(names.local_size)) fail_incomplete(names.local_rank, names.local_size);
  found.local_world_size = reader.require(names.local_size, 1);
  found.local_rank = reader.require(names.local_rank, 0);
  if (found.local_rank >= found.local_world_size) {
    fail_range(names.local_rank, found.local_rank, names.local_size, found.local_world_size);
  }
  if (found.local_world_size > found.world_size) {
    fail_range(names.local_size, found.local_world_size, names.size, found.world_size + 1);
  }
  place_on_nodes(found);
  return found;
}

}  // namespace

std::optional<std::string> Reader::text(const std::string& name) const {
  auto value = variables_(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::string Reader::first_of(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (has(name)) return name;
  }
  return "";
}

std::optional<int> Reader::number(const std::string& name, int low) const {
  const auto value = name.empty() ? std::nullopt : text(name);
  if (!value) return std::nullopt;
  const auto parsed = parse_int(*value);
  if (!parsed || *parsed < low || *parsed > std::numeric_limits<int>::max()) {
    throw Error("cluster", ErrorKind::usage,
                {.what = name,
                 .got = fmt::format("\"{}\"", *value),
                 .expected = fmt::format("an integer >= {}", low)});
  }
  return static_cast<int>(*parsed);
}

void fail_incomplete(const std::string& got, const std::string& missing,
                     const std::string& expected) {
  const bool one_variable = got.find(' ') == std::string::npos;
  throw Error("cluster", ErrorKind::usage,
              {.what = "incomplete launch environment",
               .got = fmt::format("{} without {}", got, missing),
               .expected = expected,
               .hint = "start with troika launch, torchrun, srun or mpirun" +
                       (one_variable ? fmt::format(", or unset {} to run alone", got) : "")});
}

void fail_range(const std::string& name, int value, const std::string& count_name, int count) {
  throw Error("cluster", ErrorKind::usage,
              {.what = name,
               .got = std::to_string(value),
               .expected = fmt::format("an integer below {} ({})", count, count_name)});
}

bool has_torchrun(const Reader& reader) {
  return reader.has("RANK") && reader.has("WORLD_SIZE");
}

// Variables of https://docs.pytorch.org/docs/stable/elastic/run.html. On one machine, RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT, set by hand, are sufficient.
Environment read_torchrun(const Reader& reader) {
  const auto master = reader.text("MASTER_ADDR").value_or("127.0.0.1");
  const bool loopback = master == "localhost" || master == "::1" || master.starts_with("127.");
  const bool any_local = reader.has("LOCAL_RANK") || reader.has("LOCAL_WORLD_SIZE");
  Environment found;
  if (any_local || !loopback) {
    found = read_four(reader, {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  } else {
    found = read_four(reader, {"torchrun", "RANK", "WORLD_SIZE", "RANK", "WORLD_SIZE"});
  }
  if (const auto node = reader.number("GROUP_RANK", 0)) {
    found.node_rank = *node;
    found.num_nodes = reader.number("GROUP_WORLD_SIZE", 1)
                          .value_or(std::max(found.num_nodes, found.node_rank + 1));
    if (found.node_rank >= found.num_nodes) {
      fail_range("GROUP_RANK", found.node_rank, "GROUP_WORLD_SIZE", found.num_nodes);
    }
  }
  if (found.num_nodes != 1 && !reader.has("MASTER_ADDR")) {
    fail_incomplete("RANK and WORLD_SIZE over several machines", "MASTER_ADDR", "all of them");
  }
  if (found.world_size > 1 && !reader.has("MASTER_ADDR")) {
    log::warn("MASTER_ADDR is not set: rank 0 is assumed to be on this machine, at {}", master);
  }
  found.run_id = reader.text("TORCHELASTIC_RUN_ID").value_or("");
  return found;
}

bool has_openmpi(const Reader& reader) {
  return reader.has("OMPI_COMM_WORLD_RANK") || reader.has("OMPI_COMM_WORLD_SIZE");
}

Environment read_openmpi(const Reader& reader) {
  Environment found =
      read_four(reader, {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  const auto job = reader.first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  if (!job.empty()) found.run_id = *reader.text(job);
  return found;
}

bool has_pmi(const Reader& reader) {
  return reader.has("PMI_RANK") || reader.has("PMI_SIZE");
}

// Hydra (MPICH, Intel MPI) sets the MPI_LOCAL* pair, Cray's launchers set PMI_LOCAL_*.
Environment read_pmi(const Reader& reader) {
  const bool cray = reader.has("PMI_LOCAL_RANK") && !reader.has("MPI_LOCALRANKID");
  Environment found =
      read_four(reader, {"pmi", "PMI_RANK", "PMI_SIZE", cray ? "PMI_LOCAL_RANK" : "MPI_LOCALRANKID",
                         cray ? "PMI_LOCAL_SIZE" : "MPI_LOCALNRANKS"});
  found.run_id = reader.text("PMI_JOBID").value_or("");
  return found;
}

bool has_lsf(const Reader& reader) {
  return reader.has("LSB_JOBID") &&
         (reader.has("JSM_NAMESPACE_RANK") || reader.has("JSM_NAMESPACE_SIZE"));
}

// LSF's jsrun. The first line of the rank file is the node of the batch script, which runs no
// ranks.
Environment read_lsf(const Reader& reader) {
  Environment found = read_four(reader, {"lsf", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
                                         "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"});
  found.run_id = *reader.text("LSB_JOBID");
  if (const auto file = reader.text("LSB_DJOB_RANKFILE"); file && found.num_nodes != 1) {
    const auto hosts = split(read_file(*file), '\n');
    found.master_address = hosts.size() > 1 ? std::string(trim(hosts[1])) : "";
  } else if (found.num_nodes != 1) {
    found.master_address.clear();
  }
  return found;
}

}  // namespace troika::cluster
