"""Prepares and reads moto's S3: s3_setup.py URL user | role | bucket NAME | etags NAME | delete NAME KEY | load NAME FOLDER"""

import json
import pathlib
import ssl
import sys
import urllib.request
import warnings

import boto3

url, verb, *rest = sys.argv[1:]
# The authority is the test's own; whom the gateway trusts is what is tested, not whom this script does.
warnings.simplefilter("ignore")
trusting = ssl._create_unverified_context()


def client(kind):
    return boto3.client(
        kind,
        endpoint_url=url,
        verify=False,
        region_name="us-east-1",
        aws_access_key_id="setup",
        aws_secret_access_key="setup",
    )


def check_keys(after):
    """Requests after so many further ones must bear known keys."""
    headers = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{url}/moto-api/reset-auth", str(after).encode(), headers, method="POST")
    urllib.request.urlopen(request, context=trusting if url.startswith("https") else None).read()


check_keys(1_000_000)
if verb == "user":
    iam = client("iam")
    iam.create_user(UserName="gateway")
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="gateway", PolicyName="s3", PolicyDocument=json.dumps(document))
    key = iam.create_access_key(UserName="gateway")["AccessKey"]
    print(f"[default]\naws_access_key_id = {key['AccessKeyId']}\naws_secret_access_key = {key['SecretAccessKey']}")
elif verb == "role":
    # What an instance gets: keys of a role, with a token.
    iam = client("iam")
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}]}
    role = iam.create_role(RoleName="edge-box", AssumeRolePolicyDocument=json.dumps(trust))["Role"]
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_role_policy(RoleName="edge-box", PolicyName="s3", PolicyDocument=json.dumps(document))
    key = client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="gateway")["Credentials"]
    print(f"aws_access_key_id = {key['AccessKeyId']}\naws_secret_access_key = {key['SecretAccessKey']}")
    print(f"aws_session_token = {key['SessionToken']}")
elif verb == "bucket":
    client("s3").create_bucket(Bucket=rest[0])
elif verb == "etags":
    listed = client("s3").list_objects_v2(Bucket=rest[0])
    print(json.dumps({item["Key"]: item["ETag"] for item in listed.get("Contents", [])}))
elif verb == "delete":
    client("s3").delete_object(Bucket=rest[0], Key=rest[1])
else:
    s3 = client("s3")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=rest[0]):
        for item in page.get("Contents", []):
            path = pathlib.Path(rest[1]) / item["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(rest[0], item["Key"], str(path))
check_keys(0)
