// Jobs that the site would refuse are refused before they are submitted.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/cluster/slurm/slurm_jobs.h"
#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/cluster/slurm/time_limit.h"

namespace troika::cluster::slurm {
namespace {

using std::chrono::seconds;

TEST(SlurmTime, ReadsAllFormsOfSlurm) {
  const std::pair<const char*, int64_t> rows[] = {
      {"90", 90 * 60},
      {"30:15", 30 * 60 + 15},
      {"20:00:00", 20 * 3600},
      {"2-0", 2 * 86400},
      {"1-12:30", 86400 + 45000},
      {"1-12:30:05", 86400 + 45005},
      {"100:00:00", 360000},
      {"0:00:01", 1},
  };
  for (const auto& [text, expected] : rows) EXPECT_EQ(parse_time(text), seconds(expected)) << text;
  for (const char* text : {"", "x", "-1", "1-", "-", "1:2:3:4", "1::2", "+5", " 5", "0", "0:0",
                           "1-2-3", "9999999", "1.5"}) {
    EXPECT_EQ(parse_time(text), std::nullopt) << text;
  }
  EXPECT_EQ(format_time(seconds(360061)), "100:01:01");
}

TEST(SlurmJob, CoresAreSharedAmongTheRanks) {
  const struct {
    const char* partition;
    int gpus, tasks, cpus;
  } rows[] = {{"gpu_p13", 4, 4, 10}, {"gpu_p13", 1, 1, 10}, {"gpu_p2", 8, 8, 3},
              {"gpu_p2l", 3, 3, 3},  {"gpu_p5", 8, 8, 8},   {"gpu_p6", 4, 4, 24},
              {"gpu_p6", 4, 1, 96},  {"cpu_p1", 0, 1, 40},  {"cpu_p1", 0, 8, 5}};
  for (const auto& row : rows) {
    auto job = job_on(row.partition, row.gpus);
    if (row.tasks != std::max(1, row.gpus)) job.tasks_per_node = row.tasks;
    const auto full = complete(job, jean_zay());
    EXPECT_EQ(full.tasks_per_node, row.tasks) << row.partition;
    EXPECT_EQ(full.cpus_per_task, row.cpus) << row.partition;
  }
}

TEST(SlurmJob, WhatTheSiteHasNotIsRefused) {
  const auto with = [](Job job, auto member, auto value) {
    job.*member = value;
    return job;
  };
  const auto v100 = job_on("gpu_p13", 4);
  const std::pair<Job, const char*> rows[] = {
      {job_on("", 4),
       "[slurm] partition of jean-zay; got none, expected one of gpu_p13, gpu_p2, gpu_p2s, "
       "gpu_p2l, gpu_p5, gpu_p6, cpu_p1"},
      {job_on("gpu_p13", 5),
       "[slurm] GPUs per node; got 5, expected 1 to 4, as a node of partition gpu_p13 has"},
      {job_on("gpu_p13", 0),
       "[slurm] GPUs per node; got 0, expected 1 to 4, as a node of partition gpu_p13 has"},
      {job_on("cpu_p1", 1),
       "[slurm] GPUs per node; got 1, expected 0: the nodes of partition cpu_p1 have none"},
      {job_on("gpu_p13", 4, 0), "[slurm] number of nodes; got 0, expected an integer >= 1"},
      {with(v100, &Job::constraint, "a100"),
       "[slurm] constraint on partition gpu_p13; got a100, expected one of v100-16g, v100-32g"},
      {with(job_on("gpu_p5", 8), &Job::constraint, "v100-32g"),
       "[slurm] constraint on partition gpu_p5; got v100-32g, expected one of a100"},
      {job_on("gpu_p55", 8),
       "[slurm] partition of jean-zay; got gpu_p55, expected one of gpu_p13, gpu_p2, gpu_p2s, "
       "gpu_p2l, gpu_p5, gpu_p6, cpu_p1 (did you mean gpu_p5?)"},
      {job_on("gpu_p6", 4, 129),
       "[slurm] GPUs of the job; got 516, expected at most 512, the limit of QoS "
       "qos_gpu_h100-t3"},
      {with(with(job_on("gpu_p6", 4, 17), &Job::time, "30:00:00"), &Job::qos, "qos_gpu_h100-t4"),
       "[slurm] GPUs of the job; got 68, expected at most 64, the limit of QoS qos_gpu_h100-t4"},
      {with(job_on("gpu_p6", 4, 9), &Job::qos, "qos_gpu_h100-dev"),
       "[slurm] GPUs of the job; got 36, expected at most 32, the limit of QoS qos_gpu_h100-dev "
       "(--qos=qos_gpu_h100-t3 allows that)"},
      {with(v100, &Job::account, "abc@a100"),
       "[slurm] account for partition gpu_p13; got abc@a100, expected a project's name and @v100 "
       "(hours are counted by kind of node)"},
      {with(v100, &Job::qos, "qos_gpu_h100-t3"),
       "[slurm] QoS on partition gpu_p13; got qos_gpu_h100-t3, expected one of qos_gpu-t3, "
       "qos_gpu-t4, qos_gpu-dev"},
      {with(v100, &Job::time, "20:00:01"),
       "[slurm] time; got 20:00:01, expected at most 20:00:00, the limit of QoS qos_gpu-t3 "
       "(--qos=qos_gpu-t4 allows that)"},
      {with(with(v100, &Job::time, "3:00:00"), &Job::qos, "qos_gpu-dev"),
       "[slurm] time; got 03:00:00, expected at most 02:00:00, the limit of QoS qos_gpu-dev "
       "(--qos=qos_gpu-t3 allows that)"},
      {with(v100, &Job::time, "5-0"),
       "[slurm] time; got 120:00:00, expected at most 100:00:00, the limit of partition gpu_p13"},
      {with(with(job_on("gpu_p13", 4, 5), &Job::time, "30:00:00"), &Job::qos, "qos_gpu-t4"),
       "[slurm] GPUs of the job; got 20, expected at most 16, the limit of QoS qos_gpu-t4"},
      {with(v100, &Job::time, "soon"),
       "[slurm] time; got soon, expected HH:MM:SS, D-HH:MM:SS, MM:SS or minutes"},
      {with(v100, &Job::memory, "100G"),
       "[slurm] memory; got 100G, expected none on jean-zay (memory comes with the cores; take "
       "more --cpus-per-task, or another partition)"},
      {with(v100, &Job::tasks_per_node, 8),
       "[slurm] tasks per node; got 8, expected at most 4, one for each GPU"},
      {with(v100, &Job::cpus_per_task, 11),
       "[slurm] cores per node; got 4 tasks x 11, expected at most 40, as a node of partition "
       "gpu_p13 has"},
      {with(v100, &Job::signal_lead, 600),
       "[slurm] signal lead; got 600 s, expected less than the job's time of 00:10:00 (it is the "
       "time to save before the limit)"},
      {with(v100, &Job::signal_lead, 65536),
       "[slurm] signal lead; got 65536, expected 0 to 65535 seconds"},
      {with(v100, &Job::name, "my job"),
       "[slurm] job name; got \"my job\", expected a text without blanks, quotes, backslashes and "
       "#"},
      {with(v100, &Job::output, "a\"b"),
       "[slurm] output; got \"a\"b\", expected a text without blanks, quotes, backslashes and #"},
      {with(v100, &Job::array, "1-"),
       "[slurm] array; got 1-, expected indices such as 0-9, 1,3,7 or 0-99%4"},
      {with(v100, &Job::environment, std::vector<std::string>{"A B=c"}),
       "[slurm] environment variable; got \"A B=c\", expected NAME=value"},
      {with(v100, &Job::modules, std::vector<std::string>{""}),
       "[slurm] module; got an empty name, expected the name of a module"},
      {with(v100, &Job::command, std::vector<std::string>{}),
       "[slurm] program to run; got none, expected a program and its arguments"},
      {with(v100, &Job::command, std::vector<std::string>{"-x"}),
       "[slurm] program to run; got -x, expected a name that does not begin with a dash (srun "
       "would take it for an option)"},
  };
  const Site site = jean_zay();
  for (const auto& [job, message] : rows) {
    EXPECT_ERROR(complete(job, site), ErrorKind::usage, message);
  }
}

TEST(SlurmJob, APartitionWhoseNodesAreKnownBoundsTheJob) {
  Site site = jean_zay();
  const auto job = job_on("gpu_p5", 8, 53);
  EXPECT_EQ(complete(job, site).nodes, 53) << "nothing is claimed without a source";
  std::ranges::find(site.partitions, "gpu_p5", &Partition::name)->nodes = 52;
  EXPECT_ERROR(complete(job, site), ErrorKind::usage,
               "[slurm] number of nodes; got 53, expected at most 52, as partition gpu_p5 has");
}

TEST(SlurmJob, WhatFitsIsTaken) {
  auto job = job_on("gpu_p13", 4, 4);
  job.constraint = "v100-32g";
  job.account = "abc@v100";
  job.qos = "qos_gpu-t4";
  job.time = "4-4";
  job.array = "0-9:3,12%2";
  job.cpus_per_task = 10;
  job.signal_lead = 65535;
  EXPECT_EQ(complete(job, jean_zay()).time, "100:00:00");
}

TEST(SlurmJob, ThePartitionFollowsFromTheConstraint) {
  for (const auto& [constraint, partition, left] :
       {std::tuple("a100", "gpu_p5", ""), std::tuple("h100", "gpu_p6", ""),
        std::tuple("v100-16g", "gpu_p13", "v100-16g")}) {
    for (const bool named : {false, true}) {
      auto job = job_on(named ? partition : "", 4);
      job.constraint = constraint;
      const auto full = complete(job, jean_zay());
      EXPECT_EQ(full.partition, partition);
      EXPECT_EQ(full.constraint, left);
    }
  }
  auto job = job_on("", 4);
  for (const char* partition : {"", "gpu_p6"}) {
    job.partition = partition;
    job.constraint = "h1000";
    EXPECT_ERROR(complete(job, jean_zay()), ErrorKind::usage,
                 "[slurm] constraint of jean-zay; got h1000, expected one of v100-16g, v100-32g, "
                 "a100, h100 (did you mean h100?)");
  }
}

TEST(SlurmJob, OptionsOfSbatchAreThoseItHasNotItself) {
  auto job = job_on("gpu_p13", 4);
  job.sbatch = {"--mail-type=END --mail-user=me", "--nice=5"};
  EXPECT_EQ(complete(job, jean_zay()).sbatch, job.sbatch);
  const std::pair<const char*, const char*> rows[] = {
      {"mail-type=END",
       "[slurm] --sbatch; got \"mail-type=END\", expected options of sbatch in one line, as "
       "\"--mail-type=END --mail-user=me\""},
      {"--nice=5 --time=3:00:00",
       "[slurm] --sbatch; got --time, expected options that troika slurm does not have itself "
       "(troika slurm make --help lists its own)"},
      {"-N 3",
       "[slurm] --sbatch; got -N, expected options that troika slurm does not have itself (troika "
       "slurm make --help lists its own)"},
  };
  for (const auto& [more, message] : rows) {
    job.sbatch = {more};
    EXPECT_ERROR(complete(job, jean_zay()), ErrorKind::usage, message);
  }
  job.sbatch = {"--nice=5\n#SBATCH --nodes=9"};
  EXPECT_THROW(complete(job, jean_zay()), Error);
}

TEST(SlurmSite, APartitionIsSelectedByItsNameUnlessItSaysHow) {
  const TemporaryFolder folder;
  write_file_atomically(
      folder / "ours.toml",
      "[partition.plain]\ncores = 4\n[partition.default]\ncores = 4\nselect = []\n");
  const auto site = load_site(folder / "ours.toml");
  EXPECT_THAT(site.partitions.at(0).select, testing::ElementsAre("--partition=plain"));
  EXPECT_THAT(site.partitions.at(1).select, testing::IsEmpty());
}

TEST(SlurmJob, WithoutATableOnlyTheCoresMustBeTold) {
  auto job = job_on("whatever", 7);
  EXPECT_ERROR(complete(job, Site{}), ErrorKind::usage,
               "[slurm] cores per task; got none, expected a number (without the table of a site "
               "nobody knows how many cores a node has)");
  job.cpus_per_task = 5;
  job.memory = "100G";
  job.time = "500:00:00";
  job.qos = "any";
  EXPECT_EQ(complete(job, {}).tasks_per_node, 7);
}

TEST(SlurmSite, MistakesInATableNameTheirLine) {
  const TemporaryFolder folder;
  const auto file = folder / "site.toml";
  const std::string at = " (" + file.string() + ":";
  const std::string part = "[partition.p]\ncores = 4\n";
  const std::pair<std::string, std::string> rows[] = {
      {"hint = 3\n", "[slurm] hint" + at + "1); got something else, expected a string"},
      {"\nhnit = \"x\"\n", "[slurm] unknown key hnit" + at + "2) (did you mean hint?)"},
      {part + "gpu = 4\n", "[slurm] unknown key partition.p.gpu" + at + "3) (did you mean gpus?)"},
      {part + "gpus = -1\n",
       "[slurm] partition.p.gpus" + at + "3); got -1, expected an integer >= 0"},
      {part + "select = [1]\n", "[slurm] partition.p.select" + at +
                                    "3); got something else in it, expected a list of strings"},
      {part + "time_max = \"long\"\n",
       "[slurm] partition.p.time_max" + at + "3); got long, expected a time as HH:MM:SS"},
      {part + "qos = [\"q\"]\n", "[slurm] qos of partition p in " + file.string() +
                                     "; got q, expected a name with a table [qos.q]"},
      {"[partition.p]\n", "[slurm] cores of partition p; got 0, expected an integer >= 1"},
      {"partition = 1\n",
       "[slurm] partition" + at + "1); got something else, expected tables [partition.NAME]"},
  };
  for (const auto& [text, message] : rows) {
    write_file_atomically(file, text);
    EXPECT_ERROR(load_site(file), ErrorKind::usage, message);
  }
  write_file_atomically(file, "x\n");
  try {
    load_site(file);
    FAIL() << "x is not TOML";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::StartsWith("[slurm] " + file.string() + ":1 is not TOML; got "));
  }
}

}  // namespace
}  // namespace troika::cluster::slurm
