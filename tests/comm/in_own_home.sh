#!/bin/sh
# in_own_home.sh PROGRAM ARGS...: runs a program that has a home of its own and was given no secret.
# Fails when the program does, and when it leaves a key there.
home=$(mktemp -d)
unset TROIKA_RUN_SECRET TROIKA_RUN_SECRET_FILE XDG_CONFIG_HOME
HOME=$home "$@"
code=$?
[ $code = 0 ] && [ -e "$home/.config" ] && echo "$home/.config was made" && code=1
rm -r "$home"
exit $code
