# runner ACCOUNT ID HOME WORK_DIR: installs skyward's runner, and the account of nodes with directories that it can write to.
#
# All is readable by everybody, whatever the modes of the client's files. Bytecode is made of what nodes and drivers load.
clients='(_pool|builder|delivery|engine|image|nodes|providers|ssh)/|runs/(?!__init__|driver|shared_folder|keys|program|saved)'
rm -rf /opt/skyward # of a base that is such an image itself
cp -r /run/runner /opt/skyward
/opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash \
    -x "/opt/skyward/skyward/($clients)" /opt/skyward
chmod -R a+rX /opt/skyward

# not every base has useradd, which besides leaves backups and logs that differ between builds
grep -q "^[^:]*:[^:]*:$2:" /etc/group || echo "$1:x:$2:" >>/etc/group
grep -q "^[^:]*:[^:]*:$2:" /etc/passwd || echo "$1:x:$2:$2::$3:/bin/sh" >>/etc/passwd
mkdir -p "$3" "$4"
chmod 1777 "$3" "$4"
touch -d "@$SOURCE_DATE_EPOCH" /etc # it is in the layer with these files, and the builder has changed it before

# the base's working directory, and the way to it, which may be below a home of root's
[ "$PWD" = / ] || chmod a+rwx .
above=$PWD
while [ "$above" ]; do
    find "$above" -maxdepth 0 ! -perm -001 -exec chmod a+x {} +
    above=${above%/*}
done
