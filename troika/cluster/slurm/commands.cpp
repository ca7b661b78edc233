#include "troika/cluster/slurm/commands.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/cluster/ranks/process.h"

namespace troika::cluster::slurm {

namespace {

struct Answer {
  ExitStatus status;
  std::string out, err;
};

// Returns false at the end of the stream.
bool read_some(int fd, std::string& text) {
  std::array<char, 4096> buffer;
  ssize_t got = 0;
  while ((got = ::read(fd, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  return got < 0 && (errno == EAGAIN || errno == EINTR);
}

Answer call(const std::vector<std::string>& command, Deadline deadline,
            const std::string& hint = "", Sigterm sigterm = Sigterm::ends_it) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry; ++entry) environment.emplace_back(*entry);
  const Child child = spawn(command, environment, sigterm);
  Answer answer;
  bool out_open = true, err_open = true;
  while ((out_open || err_open) && !deadline.passed()) {
    std::array<pollfd, 2> entries{{{out_open ? child.out.get() : -1, POLLIN, 0},
                                   {err_open ? child.err.get() : -1, POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), static_cast<int>(deadline.left().count())) <= 0) {
      continue;
    }
    if (entries[0].revents) out_open = read_some(child.out.get(), answer.out);
    if (entries[1].revents) err_open = read_some(child.err.get(), answer.err);
  }
  if (out_open || err_open) {
    signal_group(child.pid, SIGKILL);
    reap(child.pid);
    throw Error("slurm", ErrorKind::timeout,
                {.what = fmt::format("no answer from {} in time", command[0]), .hint = hint});
  }
  siginfo_t ended{};
  while (::waitid(P_PID, static_cast<id_t>(child.pid), &ended, WEXITED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
  answer.status = status_of(child.pid).value();
  reap(child.pid);
  return answer;
}

std::string ask_slurm(const std::vector<std::string>& command, Deadline deadline,
                      Sigterm sigterm = Sigterm::ends_it) {
  const Answer answer =
      call(command, deadline, "is Slurm's controller up? sinfo shows it", sigterm);
  if (answer.status.ok()) return answer.out;
  const std::string words(trim(answer.err));
  throw Error("slurm", ErrorKind::failure,
              {.what = fmt::format("{} failed", command[0]),
               .got = words.empty() ? describe(answer.status) : words});
}

bool is_executable(const std::filesystem::path& file) {
  return std::filesystem::is_regular_file(file) && ::access(file.c_str(), X_OK) == 0;
}

bool is_in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return is_executable(program);
  const auto folders = split(process_variable("PATH").value_or(""), ':');
  return std::ranges::any_of(folders, [&](const std::string& folder) {
    return is_executable(std::filesystem::path(folder) / program);
  });
}

}  // namespace

std::string check_program(const Job& job, Deadline deadline) {
  const auto& program = job.command.front();
  if (!is_in_path(program)) {
    if (!job.modules.empty()) {
      log::warn("[slurm] {} is not in PATH here: it must come with the modules", program);
      return "";
    }
    throw Error("slurm", ErrorKind::usage,
                {.what = "program to run",
                 .got = program,
                 .expected = "a program in PATH or the path of one",
                 .hint = "-m names modules that bring it"});
  }
  if (std::filesystem::path(program).filename() != "troika") return "";
  auto command = job.command;
  command.insert(command.begin() + 1, "--check");
  const Answer answer = call(command, deadline);
  if (answer.status.ok()) return answer.out;
  auto words = trim(answer.err);
  if (words.starts_with("error: ")) words.remove_prefix(7);
  throw Error("slurm", ErrorKind::usage,
              {.what = "the job would fail at once",
               .got = words.empty() ? describe(answer.status) : std::string(words),
               .expected = "words and a configuration that " + program + " takes"});
}

std::string submit(const std::filesystem::path& script, Deadline deadline) {
  // With --parsable, sbatch prints "id" or "id;cluster".
  const std::string out = ask_slurm({"sbatch", "--parsable", script.string()}, deadline);
  const std::string id(trim(split(out, ';').front()));
  if (!parse_int(id)) {
    throw Error(
        "slurm", ErrorKind::failure,
        {.what = "answer of sbatch", .got = std::string(trim(out)), .expected = "a job id"});
  }
  return id;
}

bool may_requeue(const Variables& variables) {
  if (variables("TROIKA_REQUEUE").value_or("1") == "0") return false;
  const std::string name = variables("SLURM_JOB_NAME").value_or("");
  return variables("SLURM_JOB_ID") && name != "bash" && name != "interactive";
}

std::string requeue(const Variables& variables, Deadline deadline) {
  const auto job = variables("SLURM_JOB_ID");
  const auto array = variables("SLURM_ARRAY_JOB_ID");
  const auto task = variables("SLURM_ARRAY_TASK_ID");
  if (!job) {
    throw Error("slurm", ErrorKind::usage,
                {.what = "cannot requeue", .got = "no SLURM_JOB_ID", .expected = "a Slurm job"});
  }
  const std::string id = array && task ? fmt::format("{}_{}", *array, *task) : *job;
  // Slurm stops the whole job at once, including scontrol, possibly before scontrol has its answer.
  ask_slurm({"scontrol", "requeue", id}, deadline, Sigterm::ignored);
  return id;
}

}  // namespace troika::cluster::slurm
