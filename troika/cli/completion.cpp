// `troika completion`: scripts with which a shell completes the commands and options of this
// program.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <iostream>
#include <map>
#include <memory>

#include "troika/base/config.h"
#include "troika/cli/commands.h"
#include "troika/cli/session.h"
#include "troika/train/options/options.h"

namespace troika::cli {

namespace {

// Both scripts complete commands, options, configuration keys, and the values of keys with a fixed
// set. No space is added after a key, because its value follows. Bash splits words at `=`.
constexpr const char* kBash = R"(
_troika() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} key=
  if [[ $word == "=" ]]; then key=$before word=
  elif [[ $before == "=" ]]; then key=${{COMP_WORDS[COMP_CWORD-2]}}
  elif [[ $before == --*.* ]]; then key=$before
  fi
  local choices=
  if [[ -n $key ]]; then
    case $key in
{values}    esac
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
    return
  fi
  local command=${{COMP_WORDS[1]}} keys=
  [[ $COMP_CWORD -gt 2 && -n ${{COMP_WORDS[2]}} ]] && command="$command ${{COMP_WORDS[2]}}"
  [[ $COMP_CWORD -eq 1 ]] && command=
  case $command in
{commands}  esac
  COMPREPLY=($(compgen -W "$choices" -- "$word"))
  if [[ -n $keys && $word == --* ]]; then
    local found=($(compgen -S = -W "{keys}" -- "$word"))
    [[ ${{#found[@]}} -gt 0 ]] && compopt -o nospace 2>/dev/null
    COMPREPLY+=("${{found[@]}}")
  fi
}}
complete -o default -F _troika troika
)";

// `words` and CURRENT hold the line that zsh completes, counted from 1.
constexpr const char* kZsh = R"(#compdef troika
_troika() {{
  local before=$words[CURRENT-1] key= choices=
  if [[ $words[CURRENT] == --*.*=* ]]; then
    key=${{words[CURRENT]%%=*}}
    compset -P '*='
  elif [[ $before == --*.* && $before != *=* ]]; then key=$before
  fi
  if [[ -n $key ]]; then
    case $key in
{values}    esac
    if [[ -n $choices ]]; then compadd -- ${{=choices}}; else _files; fi
    return
  fi
  local command=$words[2] keys= found=
  (( CURRENT > 3 )) && [[ -n $words[3] ]] && command="$command $words[3]"
  (( CURRENT == 2 )) && command=
  case $command in
{commands}  esac
  compadd -- ${{=choices}} && found=1
  if [[ -n $keys && $words[CURRENT] == --* ]]; then
    compadd -S = -- {keys} && found=1
  fi
  [[ -n $found ]] || _files
}}
compdef _troika troika
)";

std::string words_of(const CLI::App& app) {
  std::vector<std::string> words;
  for (const auto* command : app.get_subcommands(nullptr)) words.push_back(command->get_name());
  for (const auto* option : app.get_options(nullptr)) {
    for (const auto& name : option->get_lnames()) words.push_back("--" + name);
    for (const auto& name : option->get_snames()) words.push_back("-" + name);
  }
  return fmt::format("{}", fmt::join(words, " "));
}

// Adds the branches of a `case`. An inner command's branch comes before that of its parent.
void add_branches(const CLI::App& app, const std::string& path, std::string& out) {
  for (const auto* command : app.get_subcommands(nullptr)) {
    add_branches(*command, path + command->get_name() + " ", out);
  }
  const auto pattern =
      path.empty() ? "\"\"" : fmt::format("\"{0}\"|\"{0} \"*", path.substr(0, path.size() - 1));
  out += fmt::format("    {}) choices=\"{}\"{} ;;\n", pattern, words_of(app),
                     takes_configuration(app) ? " keys=1" : "");
}

std::string completion(const CLI::App& app, const char* script) {
  train::TrainOptions options;
  std::string keys, values, commands;
  for (const auto& [key, choices] : train::make_table(options).choices()) {
    keys += (keys.empty() ? "--" : " --") + key;
    if (!choices.empty()) {
      values += fmt::format("      --{}) choices=\"{}\" ;;\n", key, fmt::join(choices, " "));
    }
  }
  add_branches(app, "", commands);
  return fmt::format(fmt::runtime(script), fmt::arg("values", values),
                     fmt::arg("commands", commands), fmt::arg("keys", keys));
}

}  // namespace

Entry add_completion(CLI::App& app) {
  auto* command = app.add_subcommand(
      "completion", "print a script with which a shell completes commands and options");
  const auto shell = std::make_shared<std::string>();
  const std::map<std::string, const char*> scripts{{"bash", kBash}, {"zsh", kZsh}};
  command->add_option("SHELL", *shell, "bash or zsh")->required()->check(CLI::IsMember(scripts));
  command->footer(
      "In ~/.bashrc: source <(troika completion bash)\n"
      "In ~/.zshrc, after compinit: source <(troika completion zsh)");
  return {command, [&app, shell, scripts] {
            std::cout << completion(app, scripts.at(*shell));
            return 0;
          }};
}

}  // namespace troika::cli
