#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/cli/blas.h"
#include "troika/cli/commands.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/comm/diagnostics/flight_report.h"
#include "troika/comm/messages/backend.h"
#include "troika/comm/world/world.h"
#include "troika/compat/torch.h"
#include "troika/observe/summary.h"
#include "troika/train/tuning/tuning_file.h"

namespace troika::cli {

namespace {

using Json = nlohmann::ordered_json;

// The vector and matrix extensions that LibTorch's kernels can use.
std::vector<std::string> cpu_features() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line) && !line.starts_with("flags")) {
  }
  std::istringstream flags(line);
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;) {
    for (const char* wanted : {"avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16",
                               "avx512_vnni", "amx_bf16", "amx_int8"}) {
      if (flag == wanted) found.push_back(flag);
    }
  }
  return found;
}

Json gpus() {
  if (!torch::cuda::is_available()) return {{"count", 0}, {"why", "this LibTorch sees none"}};
  return {{"count", torch::cuda::device_count()}};
}

Json back_ends() {
  Json list = Json::array();
  list.push_back({{"name", "local"}, {"available", true}, {"why_not", ""}});
  for (const auto& row : comm::backends()) {
    const std::string reason = row.why_unavailable();
    list.push_back({{"name", row.name}, {"available", reason.empty()}, {"why_not", reason}});
  }
  return list;
}

Json launcher() {
  try {
    const auto environment = cluster::discover();
    return {{"name", environment.launcher},
            {"description", cluster::describe(environment)},
            {"world_size", environment.world_size},
            {"backend", comm::choose_backend(environment)}};
  } catch (const Error& error) {
    return {{"name", "broken"}, {"description", error.what()}};
  }
}

Json examine() {
  const Blas blas = find_blas();
  return {{"troika", observe::troika_version()},
          {"libtorch", compat::torch_version()},
          {"blas", {{"name", blas.name}, {"library", blas.library}, {"gflops", blas.gflops}}},
          {"onednn", at::hasMKLDNN()},
          {"cpu", {{"cores", std::thread::hardware_concurrency()}, {"features", cpu_features()}}},
          {"threads", at::get_num_threads()},
          {"gpus", gpus()},
          {"back_ends", back_ends()},
          {"launcher", launcher()}};
}

std::vector<std::string> warnings(const Json& found) {
  std::vector<std::string> list;
  if (found["blas"]["name"] == "reference") {
    list.push_back(
        "LibTorch uses the reference BLAS, which is many times slower than OpenBLAS: "
        "apt-get install libopenblas0-openmp");
  }
  if (!found["onednn"]) {
    list.push_back("LibTorch was built without oneDNN: convolutions will be slow");
  }
  if (found["launcher"]["name"] == "broken") {
    list.push_back("the launcher's environment does not add up: " +
                   found["launcher"]["description"].get<std::string>());
  }
  return list;
}

void print(const Json& found) {
  const auto line = [](std::string_view name, const std::string& value) {
    fmt::print("{:<16} {}\n", name, value);
  };
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  line("Troika", text(found["troika"]));
  line("LibTorch", text(found["libtorch"]));
  line("BLAS", fmt::format("{}, {:.0f} GFLOP/s on one thread ({})", text(found["blas"]["name"]),
                           found["blas"]["gflops"].get<double>(), text(found["blas"]["library"])));
  line("oneDNN", found["onednn"].get<bool>() ? "yes" : "no");
  line("CPU",
       fmt::format("{} cores, {}", found["cpu"]["cores"].get<int>(),
                   fmt::join(found["cpu"]["features"].get<std::vector<std::string>>(), " ")));
  line("threads", std::to_string(found["threads"].get<int>()));
  const auto& gpu = found["gpus"];
  line("GPUs", gpu["count"] == 0 ? "none: " + text(gpu["why"]) : gpu["count"].dump());
  for (const auto& row : found["back_ends"]) {
    line("back end " + text(row["name"]),
         row["available"].get<bool>() ? "available" : "not available: " + text(row["why_not"]));
  }
  line("launcher", text(found["launcher"]["description"]));
}

int run(bool as_json) {
  Json found = examine();
  const auto notes = warnings(found);
  if (as_json) {
    found["warnings"] = notes;
    std::cout << found.dump(2) << '\n';
  } else {
    print(found);
    for (const auto& note : notes) fmt::print("\nWARNING: {}\n", note);
  }
  return 0;
}

// Prints the timing results of this machine from the file that runs use.
int tell_tuning(bool as_json) {
  const auto file = train::TuningFile::of_user();
  const auto entries = file.read();
  if (as_json) {
    Json list = Json::array();
    for (const auto& entry : entries) list.push_back(train::to_json(entry));
    std::cout << Json{{"file", file.path().string()}, {"entries", list}}.dump(2) << '\n';
    return 0;
  }
  fmt::print("{}: {}\n", file.path().string(),
             entries.empty() ? "nothing was timed yet" : "what was timed, and the fastest of it");
  for (const auto& entry : entries) {
    std::vector<std::string> candidates;
    for (const auto& candidate : entry.candidates) {
      candidates.push_back(fmt::format("{} {:.3g} ms", candidate.name, candidate.seconds * 1e3));
    }
    const auto& question = entry.question;
    fmt::print("{}: {} ({}); LibTorch {}, {} thread{}, {}\n", question.what, entry.choice,
               fmt::join(candidates, ", "), question.libtorch, question.threads,
               question.threads == 1 ? "" : "s", question.cpu);
  }
  return 0;
}

bool has_flight_records(const std::filesystem::path& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const auto name = entry.path().filename().string();
    if (name.find("-rank") != std::string::npos && name.ends_with(".json")) return true;
  }
  return false;
}

// The folders in which the ranks of a run, or of a launch that logs into `folder`, leave flight
// records.
std::vector<std::string> flight_record_folders(const std::filesystem::path& folder) {
  auto normal = folder.lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  return {folder.string(), (folder / "flight-record").string(),
          (folder / "logs/flight-record").string(),
          (normal.parent_path() / "flight-records" / normal.filename()).string()};
}

// Returns the latest of these folders that has flight records.
std::optional<std::filesystem::path> find_flight_records(const std::filesystem::path& folder) {
  std::optional<std::filesystem::path> latest;
  for (const auto& place : flight_record_folders(folder)) {
    if (!has_flight_records(place)) continue;
    const auto time = std::filesystem::last_write_time(place);
    if (!latest || time > std::filesystem::last_write_time(*latest)) latest = place;
  }
  return latest;
}

std::optional<std::filesystem::path> run_of(const std::string& given) {
  try {
    return checkpoint::find_run(given);
  } catch (const Error&) {
    return std::nullopt;
  }
}

int explain(const std::string& given) {
  auto records = find_flight_records(given);
  const auto run = records ? std::nullopt : run_of(given);
  if (run) {
    records = find_flight_records(*run);
    if (!records) {
      throw Error("doctor", ErrorKind::usage,
                  {.what = "no flight records of run " + run->string(),
                   .got = fmt::format("none in {}", fmt::join(flight_record_folders(*run), ", ")),
                   .expected = "<group>-rank<r>.json of each rank that could write one",
                   .hint = "ranks write them when a collective fails"});
    }
  }
  std::cout << comm::flight_report(records.value_or(given));
  return 0;
}

}  // namespace

Entry add_doctor(CLI::App& app) {
  auto* command = app.add_subcommand(
      "doctor",
      "report what this machine has and what is missing, or where the ranks of a failed job were");
  const auto as_json = std::make_shared<bool>(false);
  const auto records = std::make_shared<std::optional<std::string>>();
  const auto tuning = std::make_shared<bool>(false);
  auto* json = command->add_flag("--json", *as_json, "print JSON");
  auto* timed = command->add_flag(
      "--tuning", *tuning,
      "print what runs timed on this machine at their start, and what they chose");
  command
      ->add_option("--flight-record", *records,
                   "report where each rank of a failed job was; the folder of its flight records, "
                   "of the launcher's logs or of the run")
      ->type_name("DIR")
      ->excludes(json)
      ->excludes(timed);
  return {command, [as_json, tuning, records] {
            if (*records) return explain(**records);
            return *tuning ? tell_tuning(*as_json) : run(*as_json);
          }};
}

}  // namespace troika::cli
