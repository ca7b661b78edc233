#include "troika/cluster/discovery/environment.h"

#include <gmock/gmock.h>

#include <map>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/discovery/role_variables.h"

namespace troika::cluster {
namespace {

using Map = std::map<std::string, std::string>;

Environment find(const Map& map) {
  return discover([&](const std::string& name) -> std::optional<std::string> {
    const auto found = map.find(name);
    return found == map.end() ? std::nullopt : std::optional(found->second);
  });
}

Map with(Map base, const Map& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

Map without(Map base, const std::string& name) {
  base.erase(name);
  return base;
}

std::string master_of(const Environment& e) {
  return e.master_address + ":" + std::to_string(e.master_port);
}

const Map kTorchrun{{"RANK", "5"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "4"},
                    {"GROUP_RANK", "1"},
                    {"GROUP_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "node1"},
                    {"MASTER_PORT", "4711"},
                    {"TORCHELASTIC_RUN_ID", "r"}};
const Map kSlurm{{"SLURM_JOB_ID", "777"},
                 {"SLURM_STEP_ID", "2"},
                 {"SLURM_PROCID", "9"},
                 {"SLURM_NTASKS", "11"},
                 {"SLURM_LOCALID", "1"},
                 {"SLURM_NODEID", "2"},
                 {"SLURM_NNODES", "3"},
                 {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                 {"SLURM_JOB_NODELIST", "jz[07-09]"},
                 {"SLURM_JOB_NAME", "train"}};
const Map kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                   {"PMIX_NAMESPACE", "987@1"}};
const Map kPmi{
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Map kLsf{{"LSB_JOBID", "55"},
               {"JSM_NAMESPACE_RANK", "4"},
               {"JSM_NAMESPACE_SIZE", "6"},
               {"JSM_NAMESPACE_LOCAL_RANK", "1"},
               {"JSM_NAMESPACE_LOCAL_SIZE", "3"}};

TEST(Discover, AloneWithoutAnyLauncher) {
  const auto e = find({{"MASTER_PORT", "4711"}, {"HOME", "/root"}});
  EXPECT_EQ(describe(e), "rank 0 of 1 (local 0 of 1 on node 0 of 1), no launcher found");
  EXPECT_EQ(e.launcher, "none");
  EXPECT_EQ(master_of(e), "127.0.0.1:0");
}

TEST(Discover, Torchrun) {
  const auto e = find(kTorchrun);
  EXPECT_EQ(describe(e), "rank 5 of 8 (local 1 of 4 on node 1 of 2), found by torchrun variables");
  EXPECT_EQ(master_of(e), "node1:4711");
  EXPECT_EQ(e.run_id, "r");
}

TEST(Discover, LeavesTorchrunsAgentItsPort) {
  const auto e = find(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_EQ(e.master_port, job_port(4711, 0));
  EXPECT_NE(e.master_port, 4711);
}

TEST(Discover, RankAndWorldSizeAloneMeanOneMachine) {
  const auto e = find({{"RANK", "1"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(describe(e), "rank 1 of 4 (local 1 of 4 on node 0 of 1), found by torchrun variables");
  EXPECT_EQ(master_of(e), "127.0.0.1:29400");
}

TEST(Discover, Slurm) {
  const auto e = find(kSlurm);
  EXPECT_EQ(describe(e), "rank 9 of 11 (local 1 of 3 on node 2 of 3), found by Slurm variables");
  EXPECT_EQ(e.master_address, "jz07");
  EXPECT_EQ(e.master_port, job_port(777, 2));
  EXPECT_EQ(e.run_id, "777.2");
  EXPECT_EQ(master_of(find(with(kSlurm, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "12"}}))), "h:12");
}

TEST(Discover, SlurmStepSmallerThanItsJob) {
  const auto e = find(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "2"},
                                    {"SLURM_STEP_NUM_NODES", "1"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                    {"SLURM_STEP_NODELIST", "jz09"},
                                    {"SLURM_PROCID", "1"},
                                    {"SLURM_NODEID", "0"}}));
  EXPECT_EQ(describe(e), "rank 1 of 2 (local 1 of 2 on node 0 of 1), found by Slurm variables");
  EXPECT_EQ(master_of(e), "127.0.0.1:" + std::to_string(job_port(777, 2)));
}

TEST(Discover, ShellsInsideSlurmAreAlone) {
  for (const std::string name : {"bash", "interactive"}) {
    EXPECT_EQ(find(with(kSlurm, {{"SLURM_JOB_NAME", name}})).launcher, "none");
    // Processes that srun starts from that shell are not alone.
    EXPECT_EQ(
        find(with(kSlurm, {{"SLURM_JOB_NAME", name}, {"SLURM_STEP_NUM_TASKS", "11"}})).launcher,
        "slurm");
    // The interactive step, 0xfffffffa.
    EXPECT_EQ(find(with(kSlurm, {{"SLURM_JOB_NAME", name},
                                 {"SLURM_STEP_NUM_TASKS", "11"},
                                 {"SLURM_STEP_ID", "4294967290"}}))
                  .launcher,
              "none");
  }
  EXPECT_EQ(find({{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}).launcher,
            "none")
      << "a batch script of one task";
}

TEST(Discover, OpenMpi) {
  const auto e = find(kOpenMpi);
  EXPECT_EQ(describe(e), "rank 1 of 4 (local 1 of 4 on node 0 of 1), found by Open MPI variables");
  EXPECT_EQ(e.master_address, "127.0.0.1");
  EXPECT_GE(e.master_port, 10000);
  EXPECT_EQ(e.run_id, "987@1");
  EXPECT_NE(e.master_port, find(with(kOpenMpi, {{"PMIX_NAMESPACE", "988@1"}})).master_port);
  const auto apart = find(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  EXPECT_EQ(describe(apart),
            "rank 2 of 4 (local 0 of 2 on node 1 of 2), found by Open MPI variables");
  EXPECT_EQ(apart.master_address, "") << "nobody told; MPI itself needs none";
}

TEST(Discover, PlacementOverMachinesIsWorkedOutOrUnknown) {
  const Map cyclic = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "6"},
                                     {"OMPI_COMM_WORLD_RANK", "5"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(find(cyclic).node_rank, 2);
  EXPECT_EQ(find(with(cyclic, {{"OMPI_COMM_WORLD_RANK", "4"}})).node_rank, 1);
  const Map uneven = with(cyclic, {{"OMPI_COMM_WORLD_SIZE", "7"}});
  EXPECT_EQ(describe(find(uneven)),
            "rank 5 of 7 (local 1 of 2 on an unknown node), found by Open MPI variables");
}

TEST(Discover, MpirunInsideASlurmAllocation) {
  // The daemons that srun starts for mpirun number the nodes, not the ranks.
  Map both = with(kSlurm, kOpenMpi);
  EXPECT_EQ(find(both).launcher, "openmpi");
  EXPECT_EQ(find(without(both, "SLURM_STEP_ID")).launcher, "openmpi") << "from the batch script";
  both = with(
      kSlurm,
      {{"PMI_RANK", "9"}, {"PMI_SIZE", "11"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}});
  EXPECT_EQ(find(both).launcher, "slurm") << "srun --mpi=pmi2 says the same twice";
}

TEST(Discover, Pmi) {
  EXPECT_EQ(describe(find(kPmi)),
            "rank 3 of 4 (local 1 of 2 on node 1 of 2), found by PMI variables");
  EXPECT_EQ(master_of(find(with(kPmi, {{"MPI_LOCALRANKID", "3"}, {"MPI_LOCALNRANKS", "4"}}))),
            "127.0.0.1:29400");
  EXPECT_EQ(
      find({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "2"}})
          .local_rank,
      1);
}

TEST(Discover, Lsf) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "ranks", "batch5\nh3\nh3\nh3\nh4\n");
  const auto e = find(with(kLsf, {{"LSB_DJOB_RANKFILE", (folder / "ranks").string()}}));
  EXPECT_EQ(describe(e), "rank 4 of 6 (local 1 of 3 on node 1 of 2), found by LSF variables");
  EXPECT_EQ(e.master_address, "h3");
  EXPECT_EQ(find(kLsf).master_address, "");
}

TEST(Discover, EmptyVariablesAreNotSet) {
  EXPECT_EQ(find({{"RANK", ""}, {"WORLD_SIZE", ""}}).launcher, "none");
}

TEST(Discover, WorldSizeExportedByABatchScriptMayAgree) {
  EXPECT_EQ(find(with(kSlurm, {{"WORLD_SIZE", "11"}})).launcher, "slurm");
  EXPECT_ERROR(
      find(with(kSlurm, {{"WORLD_SIZE", "8"}})), ErrorKind::usage,
      "[cluster] contradictory launch environment; got WORLD_SIZE=8 without RANK, expected "
      "11, from slurm variables (unset WORLD_SIZE)");
  EXPECT_ERROR(
      find(with(kOpenMpi, {{"RANK", "0"}})), ErrorKind::usage,
      "[cluster] contradictory launch environment; got RANK=0 without WORLD_SIZE, expected "
      "1, from openmpi variables (unset RANK)");
}

TEST(Discover, RefusesIncompleteSets) {
  struct Row {
    Map variables;
    std::string got, missing, expected, unset;
  };
  const std::string cut = "SLURM_PROCID";
  const std::vector<Row> table{
      {{{"WORLD_SIZE", "4"}}, "WORLD_SIZE", "RANK", "both", "WORLD_SIZE"},
      {{{"RANK", "1"}}, "RANK", "WORLD_SIZE", "both", "RANK"},
      {without(kTorchrun, "LOCAL_RANK"), "RANK", "LOCAL_RANK", "both", "RANK"},
      {without(kTorchrun, "LOCAL_WORLD_SIZE"), "LOCAL_RANK", "LOCAL_WORLD_SIZE", "both",
       "LOCAL_RANK"},
      {without(kTorchrun, "MASTER_ADDR"), "RANK and WORLD_SIZE over several machines",
       "MASTER_ADDR", "all of them", ""},
      {without(kSlurm, "SLURM_PROCID"), "SLURM_STEP_ID", "SLURM_PROCID", "both", "SLURM_STEP_ID"},
      {without(kSlurm, "SLURM_NTASKS"), cut, "SLURM_NTASKS", "both", cut},
      {without(kSlurm, "SLURM_LOCALID"), cut, "SLURM_LOCALID", "both", cut},
      {without(kSlurm, "SLURM_NODEID"), cut, "SLURM_NODEID", "both", cut},
      {without(kSlurm, "SLURM_NNODES"), cut, "SLURM_NNODES", "both", cut},
      {without(kSlurm, "SLURM_JOB_NODELIST"), cut, "SLURM_JOB_NODELIST", "both", cut},
      {without(kSlurm, "SLURM_STEP_TASKS_PER_NODE"), "11 tasks on 3 nodes",
       "SLURM_STEP_TASKS_PER_NODE", "both", ""},
      {without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
       "both", "OMPI_COMM_WORLD_RANK"},
      {without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"), "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE", "both", "OMPI_COMM_WORLD_LOCAL_RANK"},
      {without(kPmi, "PMI_RANK"), "PMI_SIZE", "PMI_RANK", "both", "PMI_SIZE"},
      {without(kPmi, "MPI_LOCALRANKID"), "PMI_RANK", "MPI_LOCALRANKID", "both", "PMI_RANK"},
      {without(kLsf, "JSM_NAMESPACE_SIZE"), "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "both",
       "JSM_NAMESPACE_RANK"},
  };
  for (const auto& row : table) {
    EXPECT_ERROR(find(row.variables), ErrorKind::usage,
                 "[cluster] incomplete launch environment; got " + row.got + " without " +
                     row.missing + ", expected " + row.expected +
                     " (start with troika launch, torchrun, srun or mpirun" +
                     (row.unset.empty() ? "" : ", or unset " + row.unset + " to run alone") + ")");
  }
}

TEST(Discover, RefusesTheBatchScriptItselfAndShellsOfSalloc) {
  const Map script{{"SLURM_JOB_ID", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}};
  for (const Map& singleton : {script, without(script, "SLURM_PROCID")}) {
    EXPECT_ERROR(find(singleton), ErrorKind::usage,
                 "[cluster] incomplete launch environment; got SLURM_NTASKS=4 without "
                 "SLURM_STEP_ID, expected both (start the program with srun or troika launch "
                 "inside the batch script, or unset SLURM_NTASKS to run alone)");
  }
}

TEST(Discover, RefusesValuesOutOfRange) {
  const std::vector<std::pair<Map, std::string>> table{
      {with(kTorchrun, {{"RANK", "8"}}), "RANK; got 8, expected an integer below 8 (WORLD_SIZE)"},
      {with(kTorchrun, {{"RANK", "x"}}), "RANK; got \"x\", expected an integer >= 0"},
      {with(kTorchrun, {{"RANK", "-1"}}), "RANK; got \"-1\", expected an integer >= 0"},
      {with(kTorchrun, {{"RANK", "1.5"}}), "RANK; got \"1.5\", expected an integer >= 0"},
      {with(kTorchrun, {{"RANK", "99999999999"}}),
       "RANK; got \"99999999999\", expected an integer >= 0"},
      {with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE; got \"0\", expected an integer >= 1"},
      {with(kTorchrun, {{"LOCAL_RANK", "4"}}),
       "LOCAL_RANK; got 4, expected an integer below 4 (LOCAL_WORLD_SIZE)"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}),
       "LOCAL_WORLD_SIZE; got 9, expected an integer below 9 (WORLD_SIZE)"},
      {with(kTorchrun, {{"GROUP_RANK", "2"}}),
       "GROUP_RANK; got 2, expected an integer below 2 (GROUP_WORLD_SIZE)"},
      {with(kTorchrun, {{"MASTER_PORT", "70000"}}),
       "MASTER_PORT; got 70000, expected an integer below 65536 (ports)"},
      {with(kSlurm, {{"SLURM_PROCID", "11"}}),
       "SLURM_PROCID; got 11, expected an integer below 11 (SLURM_NTASKS)"},
      {with(kSlurm, {{"SLURM_LOCALID", "3"}}),
       "SLURM_LOCALID; got 3, expected an integer below 3 (tasks on this node)"},
      {with(kSlurm, {{"SLURM_NODEID", "3"}}),
       "SLURM_NODEID; got 3, expected an integer below 3 (SLURM_NNODES)"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}}),
       "Slurm's variables disagree; got SLURM_STEP_TASKS_PER_NODE=4(x2), expected 11 tasks on 3 "
       "nodes"},
      {with(kSlurm, {{"SLURM_JOB_NODELIST", "jz[07-08]"}}),
       "Slurm's variables disagree; got SLURM_JOB_NODELIST=jz[07-08], expected 3 hosts"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}}),
       "OMPI_COMM_WORLD_RANK; got 4, expected an integer below 4 (OMPI_COMM_WORLD_SIZE)"},
      {with(kPmi, {{"MPI_LOCALRANKID", "2"}}),
       "MPI_LOCALRANKID; got 2, expected an integer below 2 (MPI_LOCALNRANKS)"},
  };
  for (const auto& [variables, message] : table) {
    EXPECT_ERROR(find(variables), ErrorKind::usage, "[cluster] " + message);
  }
}

TEST(Discover, RefusesSilentSingletons) {
  require_world_size(find(kSlurm), 11, "MPI");
  EXPECT_ERROR(require_world_size(find(kSlurm), 1, "MPI"), ErrorKind::usage,
               "[cluster] the launcher and MPI disagree on the number of ranks; got 1 from MPI, "
               "expected 11 (rank 9 of 11 (local 1 of 3 on node 2 of 3), found by Slurm variables) "
               "(start with the launcher that belongs to this MPI, e.g. its mpirun or srun "
               "--mpi=pmix)");
}

// Returns the variables of a task in a job with 3 tasks on n1, and 4 on n2 and n3.
Map heterogeneous(int tasks, const std::string& nodes, int task) {
  return {{"TROIKA_ROLE", "slurm"},
          {"SLURM_HET_SIZE", "2"},
          {"SLURM_JOB_ID", "777"},
          {"SLURM_JOB_NODELIST_HET_GROUP_0", "n1"},
          {"SLURM_JOB_NODELIST_HET_GROUP_1", "n[2-3]"},
          {"SLURM_NTASKS_HET_GROUP_0", "3"},
          {"SLURM_NTASKS_HET_GROUP_1", "4"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_TASKS", std::to_string(tasks)},
          {"SLURM_STEP_NODELIST", nodes},
          {"SLURM_PROCID", std::to_string(task)}};
}

std::string role_in(const Map& map) {
  const auto variable = role_variables([&](const std::string& name) -> std::optional<std::string> {
    const auto found = map.find(name);
    return found == map.end() ? std::nullopt : std::optional(found->second);
  });
  std::string text;
  for (const char* name : {"ROLE", "ROLE_INDEX", "SCHEDULER", "SERVERS", "WORKERS", "EMBEDDED"}) {
    text += variable(std::string("TROIKA_") + name).value_or("-") + " ";
  }
  return text;
}

TEST(RoleVariables, AreThoseOfSlurmsComponents) {
  const auto port = std::to_string(job_port(777, 9973));
  EXPECT_EQ(role_in(heterogeneous(3, "n1", 0)), "scheduler 0 n1:" + port + " 2 4 0 ");
  EXPECT_EQ(role_in(heterogeneous(3, "n1", 1)), "server 0 n1:" + port + " 2 4 0 ");
  EXPECT_EQ(role_in(heterogeneous(3, "n1", 2)), "server 1 n1:" + port + " 2 4 0 ");
  EXPECT_EQ(role_in(heterogeneous(4, "n[2-3]", 3)), "worker 3 n1:" + port + " 2 4 0 ");
  const auto alone = with(heterogeneous(1, "n1", 0), {{"SLURM_NTASKS_HET_GROUP_0", "1"}});
  EXPECT_EQ(role_in(alone), "scheduler 0 n1:" + port + " 0 4 1 ");
  EXPECT_EQ(role_in(with(heterogeneous(3, "n1", 1), {{"TROIKA_SCHEDULER", "10.0.0.1:4711"}})),
            "server 0 10.0.0.1:4711 2 4 0 ");
  // Nothing changes without `slurm`.
  EXPECT_EQ(role_in(with(heterogeneous(3, "n1", 1), {{"TROIKA_ROLE", "worker"}})),
            "worker - - - - - ");
  EXPECT_EQ(role_in(without(heterogeneous(3, "n1", 1), "TROIKA_ROLE")), "- - - - - - ");
}

TEST(RoleVariables, RefuseOtherJobsAndSteps) {
  const std::string hint = " (docs/parameter-server.md has a job script)";
  const std::string components =
      ", expected a heterogeneous job of two components: servers and "
      "workers";
  const auto three = with(heterogeneous(3, "n1", 0), {{"SLURM_HET_SIZE", "3"}});
  EXPECT_ERROR(role_in(three), ErrorKind::usage,
               "[cluster] TROIKA_ROLE=slurm; got SLURM_HET_SIZE=3" + components + hint);
  EXPECT_ERROR(role_in({{"TROIKA_ROLE", "slurm"}}), ErrorKind::usage,
               "[cluster] TROIKA_ROLE=slurm; got no SLURM_HET_SIZE" + components + hint);
  EXPECT_ERROR(role_in(heterogeneous(7, "n[1-3]", 0)), ErrorKind::usage,
               "[cluster] TROIKA_ROLE=slurm; got a step of 7 tasks on n[1-3], expected all 3 tasks "
               "on n1, or all 4 on n[2-3]: an srun for each component" +
                   hint);
  EXPECT_ERROR(role_in(without(heterogeneous(3, "n1", 0), "SLURM_NTASKS_HET_GROUP_1")),
               ErrorKind::usage,
               "[cluster] incomplete launch environment; got SLURM_HET_SIZE without "
               "SLURM_NTASKS_HET_GROUP_1, expected both (start with troika launch, torchrun, srun "
               "or mpirun, or unset SLURM_HET_SIZE to run alone)");
}

}  // namespace
}  // namespace troika::cluster
