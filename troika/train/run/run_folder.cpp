#include "troika/train/run/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <system_error>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/checkpoint/text_tensor.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/observe/summary.h"
#include "troika/train/run/course_names.h"
#include "troika/train/run/run_outputs.h"

namespace troika::train {

namespace {

using Lock = std::shared_ptr<const void>;

constexpr const char* kLockFile = ".lock";
constexpr const char* kClaimedByParent = "TROIKA_RUN_FOLDER";

// A job has an id in Slurm and an id of its launch. Both stay the same when it is restarted.
struct JobId {
  std::string id;
  bool started_again = false;
};

std::vector<JobId> job_ids() {
  const auto is_positive = [](const char* name) {
    return cluster::process_variable(name).value_or("0") != "0";
  };
  std::vector<JobId> ids;
  if (const auto job = cluster::process_variable("SLURM_JOB_ID")) {
    ids.push_back({"slurm " + *job, cluster::process_variable("SLURM_RESTART_COUNT").has_value()});
  }
  // Not every round of an elastic run is a restart.
  if (const auto launch = cluster::process_variable("TORCHELASTIC_RUN_ID")) {
    ids.push_back({"launch " + *launch,
                   is_positive("TORCHELASTIC_RESTART_COUNT") || is_positive("TROIKA_ROUND")});
  }
  return ids;
}

// The first line of the lock file names the holder; the other lines are the ids of the holder's
// job.
std::string lock_text() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"this host"};
  auto text = fmt::format("process {} on {}\n", ::getpid(), host.data());
  for (const auto& job : job_ids()) text += job.id + "\n";
  return text;
}

std::vector<std::string> lock_lines(const std::filesystem::path& folder) {
  std::error_code none;
  if (!std::filesystem::exists(folder / kLockFile, none)) return {};
  return split(read_file(folder / kLockFile), '\n');
}

// Returns null while another run holds the lock.
Lock try_lock(const std::filesystem::path& folder) {
  make_folder(folder);
  const auto file = folder / kLockFile;
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) {
    throw Error("train", ErrorKind::failure,
                {.what = "cannot write to run folder " + folder.string(),
                 .got = std::generic_category().message(errno)});
  }
  const Lock lock(new int(fd), [](const int* opened) {
    ::close(*opened);
    delete opened;
  });
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return nullptr;
    log::warn("[train] {} is on a file system without locks ({}): nothing keeps other runs out",
              folder.string(), std::generic_category().message(errno));
  }
  const auto text = lock_text();
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) < 0) {
    throw Error(
        "train", ErrorKind::failure,
        {.what = "cannot write " + file.string(), .got = std::generic_category().message(errno)});
  }
  return lock;
}

Lock lock_to_go_on(const std::filesystem::path& folder) {
  if (auto lock = try_lock(folder)) return lock;
  const auto lines = lock_lines(folder);
  throw Error("train", ErrorKind::usage,
              {.what = "run folder " + folder.string() + " is in use",
               .got = "the lock of " + (lines.empty() ? "another run" : lines.front()),
               .expected = "a run that has ended",
               .hint = "another run.name gives this run a folder of its own"});
}

bool is_of_failure(const std::filesystem::path& summary) {
  try {
    return observe::read_summary(summary).status == "failed";
  } catch (const Error&) {
    return false;  // unreadable results are results too
  }
}

bool has_results(const std::filesystem::path& folder) {
  std::error_code none;
  const auto checkpoints = folder / "checkpoints";
  if (std::filesystem::is_directory(checkpoints, none) &&
      !std::filesystem::is_empty(checkpoints, none)) {
    return true;
  }
  if (!std::filesystem::is_directory(folder, none)) return false;
  const std::filesystem::directory_iterator entries(folder);
  return std::any_of(begin(entries), end(entries), [](const auto& entry) {
    const auto name = entry.path().filename().string();
    return (name == "summary.json" && !is_of_failure(entry.path())) ||
           name.starts_with("metrics.") || name.starts_with("events.out.tfevents.");
  });
}

// NAME has number 1, NAME-N has number N.
std::string numbered(const std::string& name, int64_t number) {
  return number == 1 ? name : fmt::format("{}-{}", name, number);
}

// The names of the existing folders by number, greatest first.
std::map<int64_t, std::string, std::greater<>> names_of(const TrainOptions& options) {
  std::map<int64_t, std::string, std::greater<>> names;
  const auto first = run_folder(options);
  const auto name = first.filename().string();
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(first.parent_path(), none)) {
    const auto other = entry.path().filename().string();
    if (!entry.is_directory(none)) continue;
    if (other == name) names.emplace(1, options.run.name);
    if (!other.starts_with(name + "-")) continue;
    const auto number = parse_int(other.substr(name.size() + 1));
    if (number && *number >= 2 && other == numbered(name, *number)) {
      names.emplace(*number, numbered(options.run.name, *number));
    }
  }
  return names;
}

bool goes_on(const TrainOptions& options) {
  const auto& from = options.trainer.ckpt_path;
  if (from == "last" || from == "best") return true;
  const auto checkpoints = run_folder(options) / "checkpoints";
  const auto found = checkpoint::find_checkpoint(checkpoints, from);
  if (!std::filesystem::is_directory(found)) return false;
  if (checkpoint::lies_in(found, checkpoints)) return true;
  // The run may have saved the checkpoint in another place.
  const auto id = id_of_logged_run(run_folder(options));
  if (id.empty()) return false;
  const checkpoint::CheckpointReader saved(found, /*rank=*/0);
  return saved.has(kRunId) && checkpoint::text_of(saved.read(kRunId)) == id;
}

// Takes the folder that this process's job had before its restart, if there is one.
Lock claim_of_job(TrainOptions& options) {
  auto own = options;
  for (const auto& [number, name] : names_of(options)) {
    own.run.name = name;
    const auto lines = lock_lines(run_folder(own));
    const auto jobs = job_ids();
    const bool is_own = std::any_of(jobs.begin(), jobs.end(), [&](const JobId& job) {
      return job.started_again && std::find(lines.begin(), lines.end(), job.id) != lines.end();
    });
    if (!is_own) continue;
    // Another process of the job may hold the lock.
    auto lock = try_lock(run_folder(own));
    if (!lock) continue;
    options.run.name = name;
    if (checkpoint::has_last_of_course(run_folder(own) / "checkpoints"))
      options.trainer.ckpt_path = "last";
    return lock;
  }
  return nullptr;
}

Lock claim_new(TrainOptions& options) {
  const auto asked = options.run.name;
  const auto names = names_of(options);
  const int64_t latest = names.empty() ? 1 : names.begin()->first;
  for (int64_t number = 1;; number = std::max(number + 1, latest)) {
    options.run.name = numbered(asked, number);
    const auto folder = run_folder(options);
    if (has_results(folder)) continue;
    auto lock = try_lock(folder);
    // A run that held the lock may have ended in the meantime.
    if (!lock || has_results(folder)) continue;
    if (number > 1) {
      log::info(
          "run.name {} is taken, this run is {} (trainer.ckpt_path=last resumes the former, "
          "run.overwrite=true replaces it)",
          asked, options.run.name);
    }
    return lock;
  }
}

Lock claim_same(const TrainOptions& options) {
  for (const auto& [number, name] : names_of(options)) {
    auto other = options;
    other.run.name = name;
    if (!goes_on(options) || number == 1 || !has_results(run_folder(other))) continue;
    log::warn("[train] resumes run {}; {} is later", options.run.name, name);
    break;
  }
  return lock_to_go_on(run_folder(options));
}

bool is_claimed_by_parent(const TrainOptions& options) {
  return cluster::process_variable(kClaimedByParent) ==
         std::filesystem::absolute(run_folder(options)).string();
}

}  // namespace

RunFolder RunFolder::claim(TrainOptions& options, bool goes_on_when_started_again) {
  RunFolder result;
  // These weights belong to the run that run.name names before this run gets another name.
  auto& weights = options.weights.path;
  if (weights == "last" || weights == "best") {
    weights = run_folder(options) / "checkpoints" / weights;
  }
  if (!is_claimed_by_parent(options)) {
    if (goes_on_when_started_again) result.lock_ = claim_of_job(options);
    if (!result.lock_) {
      result.lock_ =
          options.run.overwrite || goes_on(options) ? claim_same(options) : claim_new(options);
    }
  }
  for (const char* file : {"summary.json", "trace.json", "report.html"}) {
    std::filesystem::remove(run_folder(options) / file);
  }
  return result;
}

RunFolder RunFolder::claim(TrainOptions& options, const comm::Group& group,
                           bool goes_on_when_started_again) {
  RunFolder result;
  std::string decided;
  if (group.rank() == 0) {
    result = claim(options, goes_on_when_started_again);
    decided = options.run.name + '\0' + options.trainer.ckpt_path + '\0' + options.weights.path;
  }
  const auto words = split(group.broadcast_text(decided, 0, "run folder"), '\0');
  options.run.name = words.at(0);
  options.trainer.ckpt_path = words.at(1);
  options.weights.path = words.at(2);
  return result;
}

void RunFolder::claim_for_children(const TrainOptions& options) {
  ::setenv(kClaimedByParent, std::filesystem::absolute(run_folder(options)).c_str(),
           /*overwrite=*/1);
}

}  // namespace troika::train
