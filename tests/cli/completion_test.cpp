// `troika completion`, in shells that complete as if Tab were pressed.
#include <gmock/gmock.h>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

namespace troika {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

// Returns the completions of the last word of a line that bash has split into `words`.
std::vector<std::string> complete(const std::string& words) {
  const TemporaryFolder folder;
  write_file_atomically(
      folder / "script",
      "source <(" TROIKA_PROGRAM " completion bash) || exit 1\nCOMP_WORDS=(troika " + words +
          ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_troika\n"
          "[ ${#COMPREPLY[@]} = 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\"\n");
  const auto outcome = testing_support::run_program("exec bash " + (folder / "script").string());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  auto lines = split(outcome.out, '\n');
  lines.pop_back();
  return lines;
}

TEST(Completion, KnowsCommandsOptionsKeysAndValues) {
  EXPECT_THAT(complete("tr"), ElementsAre("train"));
  EXPECT_THAT(complete("''"), IsSupersetOf({"train", "test", "launch", "slurm", "completion"}));
  EXPECT_THAT(complete("train --trainer.max_e"), ElementsAre("--trainer.max_epochs="));
  EXPECT_THAT(complete("train run.toml --print"), ElementsAre("--print-config"));
  EXPECT_THAT(complete("test --trainer.strategy = zero"), ElementsAre("zero1", "zero2", "zero3"));
  EXPECT_THAT(complete("train --trainer.trace = "), AllOf(Contains("true"), Contains("false")));
  EXPECT_THAT(complete("train --trainer.strategy dil"), ElementsAre("diloco"));
  EXPECT_THAT(complete("slurm "), Not(Contains("train")));
  EXPECT_THAT(complete("slurm su"), ElementsAre("submit"));
  EXPECT_THAT(complete("slurm submit --dry"), ElementsAre("--dry-run"));
  EXPECT_THAT(complete("launch --max"), Contains("--max-restarts"));
  // Only commands with a configuration complete its options. File names are completed by bash.
  EXPECT_THAT(complete("launch --trainer.max_e"), IsEmpty());
  EXPECT_THAT(complete("train run"), IsEmpty());
}

struct ZshCompletion {
  std::string line;                 // as it is then
  std::vector<std::string> offers;  // that fit
};

// Runs an interactive zsh on a terminal of another zsh. It completes each line before it has read
// one, and ends.
std::vector<ZshCompletion> complete_in_zsh(const std::vector<std::string>& lines) {
  const TemporaryFolder folder;
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  write_file_atomically(folder / "lines", text);
  write_file_atomically(folder / "run.toml", "");
  write_file_atomically(folder / "out", "");
  write_file_atomically(folder / ".zshrc", R"zsh(
autoload -Uz compinit; compinit -D -u
setopt no_auto_menu no_beep
source <()zsh" TROIKA_PROGRAM R"zsh( completion zsh)
compadd() {
  local -a offers
  builtin compadd -O offers "$@"
  (( $#offers )) && print -rl -- ' '$^offers >> out
  builtin compadd "$@"
}
zle-line-init() {
  for line in ${(f)"$(<lines)"}; do
    BUFFER=$line CURSOR=$#line
    zle complete-word
    print -r -- "=$BUFFER" >> out
  done
  exit
}
zle -N zle-line-init
)zsh");
  const auto outcome = testing_support::run_program(
      "cd " + folder.path().string() +
      " && ZDOTDIR=$PWD TERM=dumb exec zsh -f -c "
      "'zmodload zsh/zpty && zpty shell zsh -i && while zpty -r shell; do :; done'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  std::vector<ZshCompletion> result(1);
  for (const auto& line : split(read_file(folder / "out"), '\n')) {
    if (line.starts_with(' ')) {
      result.back().offers.push_back(line.substr(1));
    } else if (line.starts_with('=')) {
      result.back().line = line.substr(1);
      result.emplace_back();
    }
  }
  result.pop_back();
  return result;
}

TEST(Completion, KnowsTheSameInZsh) {
  const std::vector<std::pair<std::string, std::string>> rows{
      {"troika tr", "troika train "},
      {"troika slurm su", "troika slurm submit "},
      {"troika slurm submit --dry", "troika slurm submit --dry-run "},
      {"troika train --trainer.max_e", "troika train --trainer.max_epochs="},
      {"troika train --trainer.strategy dil", "troika train --trainer.strategy diloco "},
      {"troika train --trainer.precision=bf16-m", "troika train --trainer.precision=bf16-mixed "},
      {"troika train run.toml --print", "troika train run.toml --print-config "},
      {"troika train ru", "troika train run.toml "},
      {"troika launch --trainer.max_e", "troika launch --trainer.max_e"},
      {"troika test --trainer.strategy=zero", "troika test --trainer.strategy=zero"},
      {"troika ", "troika "}};
  std::vector<std::string> lines;
  for (const auto& [line, completed] : rows) lines.push_back(line);
  const auto found = complete_in_zsh(lines);
  ASSERT_EQ(found.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(found[i].line, rows[i].second);
  EXPECT_THAT(found[9].offers, ElementsAre("zero1", "zero2", "zero3"));
  EXPECT_THAT(found[10].offers, IsSupersetOf({"train", "test", "launch", "slurm", "completion"}));
}

}  // namespace
}  // namespace troika
