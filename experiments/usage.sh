# What experiments/*/*.sh begin with: --help prints the comment at the head of the script, and another option is a mistake.
case ${1:-} in
-h | --help)
    sed -n '2,/^[^#]/s/^# //p' "$0"
    exit
    ;;
-*)
    echo "error: $1 is no option. --help shows how to use it." >&2
    exit 2
    ;;
esac
