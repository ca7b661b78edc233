// Drives a fuzz target with inputs that a seed determines:
//
//   fuzz_NAME [--runs=N] [--seconds=S] [--seed=N] [FILE...]
//   fuzz_NAME --write-seeds=FOLDER
//
// Ends after N inputs (default 1000) or, with --seconds, after this time. With FILEs, runs only
// these inputs. A fault ends the program with a code other than 0 and leaves the input in the
// current folder as NAME-fault. Limits: 10 s per input, and 256 MiB more memory than the seeds
// needed.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"
#include "troika/base/error.h"
#include "troika/base/file.h"

namespace troika::fuzz {
namespace {

constexpr size_t kLargestInput = size_t{64} << 10;
constexpr unsigned kSecondsAnInput = 10;
constexpr int64_t kMemoryBound = int64_t{256} << 20;

// The input that a signal handler writes.
std::string present;
std::string fault_file;

// Safe in a signal handler.
void keep_present() {
  if (FILE* file = std::fopen(fault_file.c_str(), "wb")) {
    std::fwrite(present.data(), 1, present.size(), file);
    std::fclose(file);
  }
}

void on_signal(int number) {
  keep_present();
  const std::string_view text = number == SIGALRM ? "fault: a hang\n" : "fault: a crash\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  ::signal(number, SIG_DFL);
  ::raise(number);
}

[[noreturn]] void fail(const std::string& what) {
  keep_present();
  std::fprintf(stderr, "fault: %s; the input is in %s\n", what.c_str(), fault_file.c_str());
  std::exit(1);
}

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

void give(std::string input) {
  present = std::move(input);
  ::alarm(kSecondsAnInput);
  try {
    run(present);
  } catch (const Error&) {
  } catch (const std::exception& error) {
    fail(fmt::format("not a troika::Error: {}", error.what()));
  }
  ::alarm(0);
}

struct Options {
  int64_t runs = 1000;
  std::optional<double> seconds;
  int64_t seed = 1;
  std::optional<std::filesystem::path> write_seeds;
  std::vector<std::filesystem::path> files;
};

Options parsed(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto value = argument.substr(argument.find('=') + 1);
    if (argument.starts_with("--runs=")) {
      options.runs = std::stoll(std::string(value));
    } else if (argument.starts_with("--seconds=")) {
      options.seconds = std::stod(std::string(value));
    } else if (argument.starts_with("--seed=")) {
      options.seed = std::stoll(std::string(value));
    } else if (argument.starts_with("--write-seeds=")) {
      options.write_seeds = value;
    } else if (argument.starts_with("--")) {
      throw Error("fuzz", ErrorKind::usage,
                  {.what = "unknown option", .got = std::string(argument)});
    } else {
      options.files.emplace_back(argument);
    }
  }
  return options;
}

void main(int argc, char** argv) {
  const Options options = parsed(argc, argv);
  fault_file = std::filesystem::path(argv[0]).filename().string() + "-fault";
  for (const int number : {SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    ::signal(number, on_signal);

  std::vector<std::string> pool = seeds();
  if (options.write_seeds) {
    std::filesystem::create_directories(*options.write_seeds);
    for (size_t i = 0; i < pool.size(); ++i) {
      write_file_atomically(*options.write_seeds / fmt::format("seed-{}", i), pool[i]);
    }
    return;
  }
  if (!options.files.empty()) {
    for (const auto& file : options.files) give(read_file(file));
    return;
  }

  for (const auto& seed : pool) give(seed);
  const int64_t before = peak_bytes();
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds.value_or(0));
  Random random(static_cast<uint64_t>(options.seed));
  int64_t done = 0;
  while (options.seconds ? std::chrono::steady_clock::now() < end : done < options.runs) {
    give(mutated(pool[random.below(pool.size())], pool, kLargestInput, random));
    if (peak_bytes() > before + kMemoryBound) {
      fail(fmt::format("memory; got {} MiB, expected at most {} MiB", peak_bytes() >> 20,
                       (before + kMemoryBound) >> 20));
    }
    ++done;
  }
  fmt::print("{} inputs, seed {}, peak {} MiB: no fault\n", done, options.seed, peak_bytes() >> 20);
}

}  // namespace
}  // namespace troika::fuzz

int main(int argc, char** argv) try {
  troika::fuzz::main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
