#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "troika/base/config.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/layout/schedules/table.h"
#include "troika/train/options/options.h"
#include "troika/train/options/resolve_plan.h"

namespace troika {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = TROIKA_SOURCE_DIR;

struct Room {
  int level = 0;
  bool torch = false;
};

// The table of rooms in docs/architecture.md: | level | `room` | holds | LibTorch |
std::map<std::string, Room> rooms() {
  static const std::regex row(R"(^\| *(\d) *\| *`(\w+)` *\|.*\| *(yes|no) *\|$)");
  std::map<std::string, Room> found;
  for (const auto& line : split(read_file(kSource / "docs/architecture.md"), '\n')) {
    std::smatch match;
    if (std::regex_match(line, match, row))
      found[match[2]] = {std::stoi(match[1]), match[3] == "yes"};
  }
  return found;
}

std::vector<fs::path> sources(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".h" || entry.path().extension() == ".cpp") {
      files.push_back(entry.path());
    }
  }
  return files;
}

// The sources of the library, the program, tests, examples and benchmarks.
std::vector<fs::path> own_sources() {
  std::vector<fs::path> files;
  for (const char* folder : {"troika", "tests", "examples", "bench"}) {
    for (auto& file : sources(kSource / folder)) files.push_back(std::move(file));
  }
  return files;
}

std::vector<std::string> includes(const fs::path& file) {
  static const std::regex include(R"(^#include [<"]([^>"]+)[>"])");
  std::vector<std::string> found;
  for (const auto& line : split(read_file(file), '\n')) {
    std::smatch match;
    if (std::regex_search(line, match, include)) found.push_back(match[1]);
  }
  return found;
}

std::string room_of(const fs::path& file) {
  return fs::relative(file, kSource / "troika").begin()->string();
}

TEST(House, EveryRoomIsInTheArchitecture) {
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(kSource / "troika")) {
    if (entry.is_directory()) folders.insert(entry.path().filename());
  }
  std::set<std::string> documented;
  for (const auto& [name, room] : rooms()) documented.insert(name);
  EXPECT_EQ(folders, documented);
}

TEST(House, RoomsIncludeLowerRoomsOnly) {
  const auto known = rooms();
  int checked = 0;
  for (const auto& [name, room] : known) {
    for (const auto& file : sources(kSource / "troika" / name)) {
      for (const auto& header : includes(file)) {
        if (!header.starts_with("troika/") || header == "troika/troika.h") continue;
        const std::string other = split(header, '/').at(1);
        ++checked;
        EXPECT_TRUE(other == name || known.at(other).level < room.level)
            << file << " of level " << room.level << " includes " << header;
      }
    }
  }
  EXPECT_GT(checked, 100);
}

// Every folder that `from` includes, itself and through others.
std::set<std::string> reached(const std::string& from,
                              const std::map<std::string, std::set<std::string>>& edges) {
  std::set<std::string> result;
  std::vector<std::string> open{from};
  while (!open.empty()) {
    const auto folder = open.back();
    open.pop_back();
    if (!edges.contains(folder)) continue;
    for (const auto& next : edges.at(folder)) {
      if (result.insert(next).second) open.push_back(next);
    }
  }
  return result;
}

TEST(House, FoldersOfARoomFormNoCircle) {
  int checked = 0;
  std::set<std::string> circular;
  for (const auto& [name, room] : rooms()) {
    std::map<std::string, std::set<std::string>> edges;
    for (const auto& file : sources(kSource / "troika" / name)) {
      const auto own = fs::relative(file.parent_path(), kSource).string();
      for (const auto& header : includes(file)) {
        const auto other = fs::path(header).parent_path().string();
        if (header.starts_with("troika/" + name + "/") && other != own) edges[own].insert(other);
      }
    }
    for (const auto& [folder, others] : edges) {
      checked += static_cast<int>(others.size());
      if (reached(folder, edges).contains(folder)) circular.insert(folder);
    }
  }
  EXPECT_GT(checked, 20);
  EXPECT_THAT(circular, testing::IsEmpty());
}

TEST(House, NoRoomIsMoreThanAFifth) {
  std::map<std::string, size_t> lines;
  size_t all = 0;
  for (const auto& file : sources(kSource / "troika")) {
    const size_t count = split(read_file(file), '\n').size();
    lines[room_of(file)] += count;
    all += count;
  }
  EXPECT_GT(all, 50'000u);
  for (const auto& [room, count] : lines) EXPECT_LE(5 * count, all) << room;
}

// The headers of a program, and all that they include, are compiled with each of its files.
TEST(House, ProgramsDoNotCompileTheInsideOfComm) {
  std::set<std::string> reached{"troika/troika.h"};
  std::vector<std::string> open(reached.begin(), reached.end());
  while (!open.empty()) {
    const auto header = open.back();
    open.pop_back();
    for (const auto& next : includes(kSource / header)) {
      if (next.starts_with("troika/") && reached.insert(next).second) open.push_back(next);
    }
  }
  EXPECT_GT(reached.size(), 100u);
  for (const auto& header : reached) {
    EXPECT_FALSE(header.starts_with("troika/comm/messages/") ||
                 header.starts_with("troika/comm/diagnostics/"))
        << header;
  }
}

TEST(House, TheFloorDoesWithoutLibTorch) {
  static const std::regex torch("^(torch|ATen|c10)/");
  for (const auto& [name, room] : rooms()) {
    if (room.torch) continue;
    for (const auto& file : sources(kSource / "troika" / name)) {
      for (const auto& header : includes(file)) {
        EXPECT_FALSE(std::regex_search(header, torch)) << file << " includes " << header;
      }
    }
  }
}

TEST(House, OnlyCompatKnowsLibTorchVersionsAndInternals) {
  static const std::regex internal("^torch/(version.h|csrc/(autograd|distributed))");
  for (const auto& file : sources(kSource / "troika")) {
    if (room_of(file) == "compat") continue;
    for (const auto& header : includes(file)) {
      EXPECT_FALSE(std::regex_search(header, internal)) << file << " includes " << header;
    }
    EXPECT_THAT(read_file(file), testing::Not(testing::HasSubstr("TORCH_VERSION"))) << file;
  }
}

TEST(House, HeadersDoNotPullInAllOfLibTorch) {
  for (const auto& file : sources(kSource / "troika")) {
    if (file.extension() != ".h" || room_of(file) == "compat") continue;
    EXPECT_THAT(
        includes(file),
        testing::Not(testing::Contains(testing::AnyOf("torch/torch.h", "troika/compat/torch.h"))))
        << file;
  }
}

// All other files use the plan instead of the names.
TEST(House, OneFileKnowsStrategies) {
  for (const auto& file : sources(kSource / "troika")) {
    const auto path = fs::relative(file, kSource / "troika").string();
    if (path.starts_with("train/options/resolve_plan.")) continue;
    const auto text = read_file(file);
    auto schedules = layout::schedule_names();
    for (auto& name : layout::asynchronous_schedule_names()) schedules.push_back(std::move(name));
    for (const auto& name : train::strategy_names()) {
      // Schedules of pipelines and the axis have these names outside of the trainer, too.
      const bool is_of_pipelines = name == "pipeline" || std::ranges::count(schedules, name) > 0;
      if (is_of_pipelines && !path.starts_with("train/")) continue;
      // Errors of a room name it.
      if (fs::is_directory(kSource / "troika" / name) && !path.starts_with("train/")) continue;
      // LibTorch, devices and algorithms are chosen by that word, too; options have the default.
      if (name == "auto" || (name == "ddp" && path == "train/options/options.h")) continue;
      EXPECT_THAT(text, testing::Not(testing::HasSubstr('"' + name + '"'))) << file;
    }
    // These files use the name as the user typed it: the table of options, the check of a job
    // script, the description of a run, advice, an error.
    if (path == "train/options/options.cpp" || path == "cli/slurm.cpp" ||
        path == "train/loop/fit.cpp" || path == "train/memory/prediction.cpp" ||
        path == "train/memory/choices.cpp" || path == "train/options/pipeline_mesh.cpp") {
      continue;
    }
    EXPECT_THAT(text, testing::Not(testing::HasSubstr("trainer.strategy"))) << file;
  }
}

// Samples, seeds and sums follow the axes of the mesh; only files, links, times and memory use the
// world.
TEST(House, TheWorldIsCountedWhereItIsMeant) {
  static const std::regex size(R"(\b(world|world_|group|group_)(\.|->)size\(\))");
  std::set<std::string> found;
  for (const char* room : {"metrics", "checkpoint", "observe", "train"}) {
    for (const auto& file : sources(kSource / "troika" / room)) {
      if (!std::regex_search(read_file(file), size)) continue;
      found.insert(fs::relative(file, kSource / "troika").string());
    }
  }
  EXPECT_THAT(
      found,
      testing::UnorderedElementsAre(
          "checkpoint/resume.cpp", "checkpoint/shard.cpp", "observe/step_times.cpp",
          "train/engine/placement.cpp", "train/evaluation.cpp", "train/loop/run_origin.cpp",
          "train/loop/whole_state.cpp", "train/memory/memory_check.cpp",
          "train/profile/automatic_plan.cpp", "train/profile/link_times.cpp",
          "train/engine/block_times.cpp", "train/profile/plan_memory.cpp",
          "train/profile/rank_means.cpp", "train/run/run_group.cpp", "train/run/run_summary.cpp",
          "train/run/stop.cpp", "train/trainer.cpp", "train/tuning/pipeline_tuning.cpp"));
}

// The identifiers of a source; comments, texts and characters are skipped.
std::set<std::string> identifiers(const std::string& source) {
  std::set<std::string> found;
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t at = 0; at < source.size();) {
    const size_t begin = at;
    if (source.compare(at, 2, "//") == 0) {
      at = source.find('\n', at);
    } else if (source.compare(at, 2, "/*") == 0) {
      at = source.find("*/", at) + 2;
    } else if (source.compare(at, 2, "R\"") == 0) {
      const auto mark = source.substr(at + 2, source.find('(', at) - at - 2);
      at = source.find(')' + mark + '"', at) + mark.size() + 2;
    } else if (source[at] == '"' || source[at] == '\'') {
      for (++at; source[at] != source[begin]; ++at) at += source[at] == '\\';
      ++at;
    } else if (is_word(source[at])) {
      // A digit may be followed by a quotation mark that separates groups of digits.
      const bool is_number = std::isdigit(static_cast<unsigned char>(source[at]));
      while (is_word(source[at]) || (is_number && source[at] == '\'')) ++at;
      found.insert(source.substr(begin, at - begin));
    } else {
      ++at;
    }
  }
  return found;
}

// docs/glossary.md has the names in their place.
TEST(House, NamesThatWentStayAway) {
  const std::set<std::string> gone{"Errands",  "Loops",          "MessagePrint",
                                   "Party",    "Print",          "Standing",
                                   "Station",  "after_pass",     "agree",
                                   "deaf",     "has_pieces",     "meet",
                                   "party",    "piece_multiple", "shares_parameters",
                                   "standing", "station",        "stored_part",
                                   "ways"};
  size_t checked = 0;
  for (const auto& file : own_sources()) {
    for (const auto& name : identifiers(read_file(file))) {
      ++checked;
      EXPECT_FALSE(gone.contains(name) || name.starts_with("settle")) << name << " in " << file;
      // In nn it is the connection of a residual block.
      EXPECT_FALSE(name == "shortcut" && room_of(file) != "nn") << name << " in " << file;
    }
  }
  EXPECT_GT(checked, 10000u);
}

// Returns the sentences of comments that begin with a word by which fragments begin.
std::vector<std::string> fragments(const std::string& source) {
  static const std::regex start(R"((?:^|\. )((?:Of|What|Those|Which|Whose|Else)\b.{0,40}))");
  std::vector<std::string> found;
  std::string comment;
  const auto end_comment = [&] {
    std::smatch match;
    if (std::regex_search(comment, match, start)) found.push_back(match[1]);
    comment.clear();
  };
  for (const auto& line : split(source, '\n')) {
    const auto slashes = line.find("// ");
    const auto code = std::string_view(line).substr(0, slashes);
    if (slashes == std::string::npos || !trim(code).empty()) end_comment();
    if (slashes == std::string::npos || code.ends_with('"')) continue;
    comment += (comment.empty() ? "" : " ") + line.substr(slashes + 3);
  }
  end_comment();
  return found;
}

TEST(House, CommentsAreWholeSentences) {
  EXPECT_THAT(fragments("// A rank.\nint a;  // Of a rank.\n// A\n// b. What c\nint b;\n// d Of\n"),
              testing::ElementsAre("Of a rank. A b. What c"));
  for (const auto& file : own_sources()) {
    EXPECT_THAT(fragments(read_file(file)), testing::IsEmpty()) << file;
  }
}

// docs/glossary.md has the words that pages use instead.
TEST(House, PagesUseTheWordsOfTheGlossary) {
  static const std::regex old(
      R"(\b(go(es)? on (from|with)|going on|anew|shares? out|shared out)\b)");
  std::vector<fs::path> pages{kSource / "README.md", kSource / "CONTRIBUTING.md"};
  for (const auto& entry : fs::directory_iterator(kSource / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  EXPECT_GT(pages.size(), 20u);
  for (const auto& page : pages) {
    int number = 0;
    for (const auto& line : split(read_file(page), '\n')) {
      ++number;
      EXPECT_FALSE(std::regex_search(line, old)) << page << ":" << number << ": " << line;
    }
  }
}

// The strategy, model or back end that an option is for comes before a colon.
TEST(House, HelpOfOptionsIsNoFragment) {
  train::TrainOptions options;
  int checked = 0;
  for (const auto& line : split(train::make_table(options).to_markdown(), '\n')) {
    const auto cells = line.rfind(" | ");
    if (!line.starts_with("| `") || cells == std::string::npos) continue;
    ++checked;
    const auto help = line.substr(cells + 3);
    EXPECT_FALSE(help.starts_with("of ") || help.starts_with("what ")) << line;
  }
  EXPECT_GT(checked, 100);
}

TEST(House, OneNameIsOneClass) {
  static const std::regex definition(
      R"(^\s*(?:class|struct|enum class|using) (?:\[\[nodiscard\]\] )?(\w+))");
  std::map<std::string, std::vector<std::string>> found;
  for (const char* name : {"Job", "Placement", "Precision", "Reducer", "Slot", "Span"}) found[name];
  for (const auto& file : sources(kSource / "troika")) {
    for (const auto& line : split(read_file(file), '\n')) {
      std::smatch match;
      if (!std::regex_search(line, match, definition) || !found.contains(match[1])) continue;
      const bool is_announced = line.ends_with(';') && line.find('=') == std::string::npos;
      if (!is_announced) found[match[1]].push_back(file.string());
    }
  }
  for (const auto& [name, files] : found) EXPECT_THAT(files, testing::SizeIs(1)) << name;
}

TEST(House, FilesCanBeHeldInTheHead) {
  for (const char* folder : {"troika", "tests", "examples"}) {
    for (const auto& file : sources(kSource / folder)) {
      EXPECT_LE(split(read_file(file), '\n').size(), 400u) << file;
    }
  }
}

TEST(House, ConfigurationIsDocumentedFromItsTable) {
  train::TrainOptions options;
  EXPECT_THAT(read_file(kSource / "docs/configuration.md"),
              testing::EndsWith(train::make_table(options).to_markdown()))
      << "the end of docs/configuration.md is the output of troika train --describe-config";
}

}  // namespace
}  // namespace troika
